// File descriptors: closed with their owner, read as a whole; and those of a session, which the program may
// close.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace softnpu {

class Fd {
public:
    Fd() = default;
    // From 3 on: whoever prints in a program without standard streams would write into a lower one.
    explicit Fd(int fd) : fd_(fd > STDERR_FILENO || fd < 0 ? fd : above_streams(fd)) {}
    Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd& operator=(Fd&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Fd() { reset(); }

    int get() const { return fd_; }
    bool valid() const { return fd_ >= 0; }
    int release() { return std::exchange(fd_, -1); }
    void reset() {
        if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    }

private:
    static int above_streams(int fd);

    int fd_ = -1;
};

// Whether the file has all pages of a mapping of this size: access to a missing one is SIGBUS.
bool has_pages(int fd, size_t size) noexcept;
// Maps a file for reading; UNKNOWN with its name if it has fewer pages, OUT_OF_HOST_MEMORY.
const uint8_t* map_pages(const char* name, int fd, size_t size);
// Reads `size` bytes; UNKNOWN with the name of the file if it ends before.
void read_all(const char* name, int fd, void* data, size_t size, uint64_t offset);

// A descriptor of a session, in a program that may close descriptors that it does not know.
//
// Programs that become daemons close every descriptor; the next file that they open reuses the number. So
// each is marked: F_SETSIG stores a signal number in the open file, which one system call reads. No signal is
// sent (that needs O_ASYNC and an owner), and no program uses this number: the C library reserves it. An
// inode would not do: all eventfds have the same one.
class SessionFd {
public:
    // OUT_OF_HOST_MEMORY if the file cannot be marked.
    explicit SessionFd(Fd fd);
    // Closes it, unless the program has.
    ~SessionFd();
    SessionFd(const SessionFd&) = delete;
    SessionFd& operator=(const SessionFd&) = delete;

    int get() const { return fd_; }
    // Whether the number still means this file.
    bool is_ours() const;

private:
    friend void close_session_fds_in_child();

    std::atomic<int> fd_;
};

// Around a fork: the child closes all of them, so that the daemon learns of the parent's end.
void lock_session_fds();
void unlock_session_fds();
void close_session_fds_in_child();

}  // namespace softnpu
