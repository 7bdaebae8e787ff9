// A descriptor that lasts as long as a session, in a program that may close what it does not know.
//
// Programs that become daemons close every descriptor; the next file that they open then has a number of
// ours. So each is marked: F_SETSIG notes a signal in the open file itself, and says it again at the price of
// one system call. No signal is ever sent (that needs O_ASYNC and an owner), and no program has this mark:
// the C library keeps the signal for itself. An inode would not do: all eventfds have the same one.
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

// Around a fork: nobody changes what there is meanwhile, and the child closes it all, so that the daemon
// learns of the parent's end.
void lock_session_fds();
void unlock_session_fds();
void close_session_fds_in_child();

}  // namespace softnpu
