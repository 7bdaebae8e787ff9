// The socket of the daemon: its path, connecting to it, also by a long path, and its owner: section 1 of
// docs/interface.md.
#pragma once

#include <sys/types.h>

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

// The process that serves a connected socket, from the kernel.
struct Peer {
    pid_t pid = 0;
    uid_t user = 0;
};
Peer peer_of(int socket);

// INSUFFICIENT_PERMISSIONS unless the peer is this user or root, or owns a `named` socket in a directory that
// only the owner or root can write.
void check_peer(const Peer& peer, const std::string& path, bool named);

}  // namespace softnpu
