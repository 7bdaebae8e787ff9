#include "base/fd.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <mutex>

#include "base/error_info.hpp"

namespace softnpu {

int Fd::above_streams(int fd) {
    const int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int code = errno;
    ::close(fd);
    errno = code;
    return moved;
}

bool has_pages(int fd, size_t size) noexcept {
    constexpr size_t PAGE = 4096;
    struct stat status;
    if (fstat(fd, &status) != 0 || status.st_size < 0) return false;
    return (size - 1) / PAGE < (static_cast<size_t>(status.st_size) + PAGE - 1) / PAGE;
}

const uint8_t* map_pages(const char* name, int fd, size_t size) {
    if (!has_pages(fd, size)) throw unknown_error(name, "its file is shorter", format("%zu bytes", size));
    void* const mapped = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) throw out_of_host_memory(name, errno_text(errno), "room to map it");
    return static_cast<const uint8_t*>(mapped);
}

void read_all(const char* name, int fd, void* data, size_t size, uint64_t offset) {
    for (size_t done = 0; done < size;) {
        const ssize_t part =
            pread(fd, static_cast<char*>(data) + done, size - done, static_cast<off_t>(offset + done));
        if (part < 0 && errno == EINTR) continue;
        if (part <= 0) {
            throw unknown_error(name, part < 0 ? errno_text(errno) : "it ends too early", "a whole file");
        }
        done += static_cast<size_t>(part);
    }
}

// ---------------------------------------------------------------- descriptors of a session

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
