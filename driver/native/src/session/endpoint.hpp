// The socket of the daemon: its path, and connecting to it, also by a long path.
#pragma once

#include <string>

#include "base/fd.hpp"

namespace softnpu {

// A path, and whether `SOFTNPU_SOCKET` named it.
struct Endpoint {
    std::string path;
    bool named = false;
};
// `SOFTNPU_SOCKET`, else `softnpu.sock` in a private directory of this user.
Endpoint default_endpoint();

// The directory that a path lies in.
std::string folder_of(const std::string& path);

// A connected socket, or the reason why there is none.
struct Attempt {
    Fd socket;
    std::string reason;
};
Attempt try_to_connect(const std::string& path);

}  // namespace softnpu
