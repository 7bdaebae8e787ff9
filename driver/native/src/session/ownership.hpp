// Whose daemon it is that a socket leads to: see section 1 of docs/interface.md.
#pragma once

#include <sys/types.h>

#include <string>

namespace softnpu {

// Who serves a connected socket, as the kernel knows it.
struct Peer {
    pid_t pid = 0;
    uid_t user = 0;
};
Peer peer_of(int socket);

// INSUFFICIENT_PERMISSIONS unless the peer is this user or root, or a user whose own socket was `named` in a
// directory where nobody else can make or replace it.
void check_peer(const Peer& peer, const std::string& path, bool named);

}  // namespace softnpu
