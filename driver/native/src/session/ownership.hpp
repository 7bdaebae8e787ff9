// The owner of the daemon behind a socket: section 1 of docs/interface.md.
#pragma once

#include <sys/types.h>

#include <string>

namespace softnpu {

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
