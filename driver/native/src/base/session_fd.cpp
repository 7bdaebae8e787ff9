#include "base/session_fd.hpp"

#include <fcntl.h>

#include <cerrno>
#include <map>
#include <mutex>

#include "base/error_info.hpp"

namespace softnpu {

namespace {

constexpr int MARK = 33;  // between the signals of the system and those of real time

// Never destroyed: programs call the driver from destructors of static objects.
struct Registry {
    std::mutex mutex;
    std::map<int, SessionFd*> by_number;
};

Registry& registry() {
    static auto* const made = new Registry;
    return *made;
}

bool is_marked(int fd) { return fd >= 0 && fcntl(fd, F_GETSIG) == MARK; }

}  // namespace

SessionFd::SessionFd(Fd fd) : fd_(-1) {
    if (fcntl(fd.get(), F_SETSIG, MARK) != 0) {
        throw out_of_host_memory(format("descriptor %d", fd.get()), "F_SETSIG: " + errno_text(errno),
                                 "a kernel that notes a signal in any open file");
    }
    std::lock_guard lock(registry().mutex);
    SessionFd*& owner = registry().by_number[fd.get()];
    // the program has closed the descriptor of an older session with this number
    if (owner != nullptr) owner->fd_ = -1;
    owner = this;
    fd_ = fd.release();
}

SessionFd::~SessionFd() {
    std::lock_guard lock(registry().mutex);
    const int fd = fd_;
    if (fd < 0) return;
    registry().by_number.erase(fd);
    if (is_marked(fd)) ::close(fd);
}

bool SessionFd::is_ours() const { return is_marked(fd_); }

void lock_session_fds() { registry().mutex.lock(); }

void unlock_session_fds() { registry().mutex.unlock(); }

void close_session_fds_in_child() {
    for (const auto& [fd, owner] : registry().by_number) {
        if (is_marked(fd)) ::close(fd);
        owner->fd_ = -1;
    }
    registry().by_number.clear();
    registry().mutex.unlock();
}

}  // namespace softnpu
