// Connecting to the daemon, and starting a per-user one when there is none.
#pragma once

#include <string>

#include "base/fd.hpp"

namespace softnpu {

// A connected socket. UNINITIALIZED when there is no daemon and none may or can be started.
Fd connect_to_daemon(const std::string& path);

}  // namespace softnpu
