// Environment variables; a privileged program reads none.
#pragma once

#include <stdlib.h>
#include <sys/auxv.h>

namespace softnpu {

// Whether this program has more rights than its user (setuid, setgid, capabilities).
inline bool is_privileged() { return getauxval(AT_SECURE) != 0; }

// The value of a variable; null if it is not set, and always in a privileged program.
inline const char* variable(const char* name) { return secure_getenv(name); }

}  // namespace softnpu
