// Where the daemon is found, and how to reach a socket with a long path.
#pragma once

#include <string>

#include "base/fd.hpp"

namespace softnpu {

// Where the daemon of this user is, or the one that `SOFTNPU_SOCKET` names.
struct Endpoint {
    std::string path;
    bool named = false;
};
// `SOFTNPU_SOCKET`, else `softnpu.sock` in a directory of this user that nobody else can enter.
Endpoint default_endpoint();

// The directory that a path lies in.
std::string folder_of(const std::string& path);

// A connected socket, over which nothing was sent, or none and why.
struct Attempt {
    Fd socket;
    std::string reason;
};
Attempt try_to_connect(const std::string& path);

}  // namespace softnpu
