// The control connection of a process: requests and answers, from any number of threads.
//
// It has no thread: one of the threads that wait for answers reads the socket for all of them.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/error_info.hpp"
#include "base/fd.hpp"
#include "interface/words.hpp"
#include "wire/frame.hpp"
#include "wire/msgpack.hpp"

namespace softnpu {

// A queue or a session of this process has ended: whoever waits for the device looks again.
void note_ending() noexcept;

// The final answer of a request; its descriptors belong to the caller.
struct Answer {
    Value fields;
    std::vector<Fd> fds;
};

// How long to wait for an answer, by the process that gives it.
enum class Timeout {
    supervisor,  // 30 s, then the daemon counts as gone
    compiler,    // 600 s since the last progress, then the compilation has failed
    loader,      // 600 s: a load reports no progress
    end,         // 600 s: a queue ends after its running inference
};

class Connection {
public:
    Connection(Fd socket, std::string name);
    // Ends the session.
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    // Sends a request and waits for the answer of this type, with at least so many descriptors. Throws what
    // the daemon refused, or DEVICE_LOST when it is gone or does not answer.
    //
    // It is a cancellation point with `interrupted`, and while a compiler or loader is waited for. The number
    // of a request whose thread was cancelled is stored in `interrupted`, for `await_answer`; without it what
    // the answer brings is released.
    Answer request(const MapWriter& message, std::string_view expected, size_t fds_expected = 0,
                   const std::vector<int>& fds = {}, Timeout timeout = Timeout::supervisor,
                   uint32_t* interrupted = nullptr);
    Answer await_answer(uint32_t number);

    // Whether the daemon is gone or the program has closed the connection (two system calls).
    bool is_lost();
    // Whether that has been seen: then nothing more wakes a waiter.
    bool is_known_lost() const { return lost_; }
    // Whether the daemon was gone at the last look, not longer ago than a millisecond: for each submission.
    bool had_ended();
    // The error of every call then.
    Error lost_error();
    // What ends a wait for the device besides what it waits for. To be read before looking whether it is
    // over.
    OtherEnds other_ends() const;
    // The word of the daemon that tells whether this session lives; it stays mapped.
    void watch_life(const uint8_t* word) { life_ = const_cast<uint8_t*>(word); }
    // Whether the daemon has closed the connection without a reason.
    bool was_closed() const { return closed_; }
    // Throws the error of a session that is lost because the program has closed one of its descriptors.
    [[noreturn]] void descriptor_is_gone(const char* what, int number);

private:
    struct Pending {
        bool progressed = false;
        bool answered = false;
        bool abandoned = false;  // its thread was cancelled
        Packet packet;
        Value fields;
    };

    class Request;

    // With one system call, which does not notice another file under the number of the socket.
    bool has_ended();
    std::shared_ptr<Pending> add(uint32_t& number);
    Answer unwrap(Pending& pending);
    void release(const Value& answer);
    void release_abandoned();
    void send(uint32_t number, const MapWriter& message, const std::vector<int>& fds);
    void wait(uint32_t number, Pending& pending, Timeout timeout, bool cancellable);
    void read_one(std::unique_lock<std::mutex>& lock, uint64_t end, bool cancellable);
    void read_and_dispatch(std::unique_lock<std::mutex>& lock, uint64_t end, bool cancellable);
    void dispatch(Packet packet);
    [[noreturn]] void time_out(uint32_t number, Timeout timeout);
    void mark_lost(std::string reason) noexcept;
    // The next ones: called with the lock.
    void lose(std::string reason) noexcept;
    void lose_closed() noexcept;

    const std::string name_;
    const SessionFd socket_;
    std::mutex send_mutex_;
    std::mutex mutex_;
    Condition changed_;
    std::map<uint32_t, std::shared_ptr<Pending>> pending_;
    std::atomic<uint32_t> abandoned_{0};  // how many of them
    uint32_t last_number_ = 0;
    bool reading_ = false;
    std::atomic<uint8_t*> life_{nullptr};
    std::atomic<bool> lost_{false};
    std::atomic<bool> closed_{false};
    std::atomic<uint64_t> looked_ns_{0};
    std::string reason_;
};

}  // namespace softnpu
