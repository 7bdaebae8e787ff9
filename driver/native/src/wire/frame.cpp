#include "wire/frame.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/error_info.hpp"
#include "interface/schema.hpp"

namespace softnpu {

using namespace schema;

namespace {

std::vector<Fd> received_fds(msghdr& message) {
    std::vector<Fd> fds;
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
        const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t index = 0; index < count; ++index) {
            int fd;
            std::memcpy(&fd, CMSG_DATA(part) + index * sizeof fd, sizeof fd);
            fds.emplace_back(fd);
        }
    }
    return fds;
}

Error malformed(const std::string& found, const std::string& expected) {
    return invalid_argument("control frame", found, expected);
}

}  // namespace

int send_frame(int socket, uint32_t request, std::string_view body, const std::vector<int>& fds) {
    FrameHeader header{};
    frame::MAGIC.copy(header.magic, sizeof header.magic);
    header.format = frame::FORMAT;
    header.fds = static_cast<uint16_t>(fds.size());
    header.request = request;
    header.size = static_cast<uint32_t>(body.size());
    iovec parts[2] = {{&header, sizeof header}, {const_cast<char*>(body.data()), body.size()}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    alignas(cmsghdr) char control[CMSG_SPACE(frame::MAX_FDS * sizeof(int))] = {};
    if (!fds.empty()) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
        cmsghdr* const rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
        std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
    }
    while (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0) {
        if (errno != EINTR) return errno;
    }
    return 0;
}

std::optional<Packet> receive_frame(int socket) {
    std::vector<char> data(sizeof(FrameHeader) + frame::MAX_BODY + 1);
    alignas(cmsghdr) char control[CMSG_SPACE(frame::MAX_FDS * sizeof(int))];
    iovec part{data.data(), data.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    ssize_t size;
    // ECONNRESET comes once, ahead of frames that the peer sent before it closed
    for (int resets = 0;;) {
        message.msg_controllen = sizeof control;
        size = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
        if (size >= 0) break;
        if (errno == EINTR || (errno == ECONNRESET && resets++ == 0)) continue;
        if (errno == ECONNRESET) return std::nullopt;
        throw device_lost("control socket", errno_text(errno));
    }
    Packet packet;
    packet.fds = received_fds(message);
    if (size == 0 && packet.fds.empty()) return std::nullopt;
    if (message.msg_flags & MSG_TRUNC) throw malformed("it was cut", "a whole frame");
    packet.fds_lost = (message.msg_flags & MSG_CTRUNC) != 0;
    FrameHeader header;
    if (static_cast<size_t>(size) < sizeof header)
        throw malformed(format("%zd bytes", size), "a header of 16 bytes");
    std::memcpy(&header, data.data(), sizeof header);
    if (frame::MAGIC.compare(0, sizeof header.magic, header.magic, sizeof header.magic) != 0 ||
        header.format != frame::FORMAT) {
        throw malformed("another magic or format", "'SNPU', format 1");
    }
    const bool all_fds = packet.fds_lost || header.fds == packet.fds.size();
    if (header.size != static_cast<size_t>(size) - sizeof header || !all_fds) {
        throw malformed("sizes that do not agree", "body and descriptors as the header says");
    }
    packet.request = header.request;
    packet.body.assign(data.data() + sizeof header, header.size);
    return packet;
}

}  // namespace softnpu
