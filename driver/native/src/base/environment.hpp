// Environment variables, which a privileged program does not read, and lines on stderr, which
// `SOFTNPU_LOG=off` silences.
#pragma once

#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <set>
#include <string>

namespace softnpu {

// Whether this program has more rights than its user (setuid, setgid, capabilities).
inline bool is_privileged() { return getauxval(AT_SECURE) != 0; }

// The value of a variable; null if it is not set, and always in a privileged program.
inline const char* variable(const char* name) { return secure_getenv(name); }

// Writes `text` once per process, as one line on stderr, for errors that no result can express.
inline void log_once(const std::string& text) {
    const char* level = variable("SOFTNPU_LOG");
    if (level != nullptr && std::strcmp(level, "off") == 0) return;
    // never destroyed: programs call the driver from destructors of static objects too
    static auto* const mutex = new std::mutex;
    static auto* const logged = new std::set<std::string>;
    {
        // never blocks: in a forked child the holder may not exist
        std::unique_lock<std::mutex> lock(*mutex, std::try_to_lock);
        if (lock && !logged->insert(text).second) return;
    }
    const std::string line = "softnpu: " + text + "\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace softnpu
