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
struct Known {
    std::mutex mutex;
    std::map<int, SessionFd*> by_number;
};

Known& known() {
    static auto* const made = new Known;
    return *made;
}

bool is_marked(int fd) { return fd >= 0 && fcntl(fd, F_GETSIG) == MARK; }

}  // namespace

SessionFd::SessionFd(Fd fd) : fd_(-1) {
    if (fcntl(fd.get(), F_SETSIG, MARK) != 0) {
        throw out_of_host_memory(format("descriptor %d", fd.get()), "F_SETSIG: " + errno_text(errno),
                                 "a kernel that notes a signal in any open file");
    }
    std::lock_guard lock(known().mutex);
    SessionFd*& owner = known().by_number[fd.get()];
    // the number was free: the program has closed the file that an older session had there
    if (owner != nullptr) owner->fd_ = -1;
    owner = this;
    fd_ = fd.release();
}

SessionFd::~SessionFd() {
    std::lock_guard lock(known().mutex);
    const int fd = fd_;
    if (fd < 0) return;
    known().by_number.erase(fd);
    if (is_marked(fd)) ::close(fd);
}

bool SessionFd::is_ours() const { return is_marked(fd_); }

void lock_session_fds() { known().mutex.lock(); }

void unlock_session_fds() { known().mutex.unlock(); }

void close_session_fds_in_child() {
    for (const auto& [fd, owner] : known().by_number) {
        if (is_marked(fd)) ::close(fd);
        owner->fd_ = -1;
    }
    known().by_number.clear();
    known().mutex.unlock();
}

}  // namespace softnpu
