// A descriptor of a session, in a program that may close descriptors that it does not know.
//
// Programs that become daemons close every descriptor; the next file that they open reuses the number. So
// each is marked: F_SETSIG stores a signal number in the open file, which one system call reads. No signal is
// sent (that needs O_ASYNC and an owner), and no program uses this number: the C library reserves it. An
// inode would not do: all eventfds have the same one.
#pragma once

#include <atomic>

#include "base/fd.hpp"

namespace softnpu {

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
