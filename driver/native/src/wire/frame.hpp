// Frames over a SOCK_SEQPACKET socket: 16 bytes of header, one message, and up to 16 descriptors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace softnpu {

struct Packet {
    uint32_t request = 0;
    std::string body;
    std::vector<Fd> fds;
    bool fds_lost = false;  // this process had no room for them
};

// Sends one frame; the descriptors stay the caller's. Returns 0 or an errno value.
int send_frame(int socket, uint32_t request, std::string_view body, const std::vector<int>& fds);

// The next frame; none when the peer has closed. Throws Error for a malformed frame.
std::optional<Packet> receive_frame(int socket);

}  // namespace softnpu
