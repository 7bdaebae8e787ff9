// The control connection of a process: requests and answers, from any number of threads.
//
// No thread of its own: of the threads that wait for answers one reads the socket for all of them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fault.hpp"
#include "base/session_fd.hpp"
#include "wire/frame.hpp"
#include "wire/msgpack.hpp"

namespace softnpu {

// The final answer of a request; its descriptors belong to the caller.
struct Answer {
    Value fields;
    std::vector<Fd> fds;
};

// How long the daemon may be silent, and whose silence it is.
enum class Patience {
    supervisor,  // 30 s, then the daemon counts as gone
    compiler,    // 600 s since the last progress, then the compilation has failed
    loader,      // 600 s: a graph is loaded without a word
};

class Connection {
public:
    Connection(Fd socket, std::string name);

    // Sends a request and waits for the answer of this kind, which brings so many descriptors at least.
    // Throws what the daemon refused, or DEVICE_LOST when it is gone or silent.
    //
    // With `late`, or for patience with others than the supervisor, it is a cancellation point. The answer
    // that comes afterwards is taken by `late_answer` of the number that is left there; without it what it
    // brings is given back.
    Answer request(const MapWriter& message, const char* expected, size_t fds_expected = 0,
                   const std::vector<int>& fds = {}, Patience patience = Patience::supervisor,
                   uint32_t* late = nullptr);
    Answer late_answer(uint32_t number);

    // Whether the daemon is gone, or the program has closed the connection, asked anew (two system calls).
    bool is_lost();
    // As far as one system call tells: a file that has taken the place of the socket may look alive.
    bool has_ended();
    // The error that every wait ends with then.
    Error lost_error();
    // Whether the daemon has closed the connection, not this process and not for a reason that it gave.
    bool was_closed() const { return closed_; }
    // The program has closed a descriptor of the session: it is lost. Throws its error.
    [[noreturn]] void descriptor_is_gone(const char* what, int number);

private:
    struct Pending {
        bool progressed = false;
        bool answered = false;
        bool abandoned = false;  // nobody will ask for it
        Packet packet;
        Value fields;
    };

    class Asking;

    std::shared_ptr<Pending> add(uint32_t& number);
    Answer take(Pending& pending);
    void give_back(const Value& answer);
    void give_back_abandoned();
    void send(uint32_t number, const MapWriter& message, const std::vector<int>& fds);
    void wait(uint32_t number, Pending& pending, Patience patience, bool cancellable);
    void read_one(std::unique_lock<std::mutex>& lock, uint64_t end, bool cancellable);
    void read_and_dispatch(std::unique_lock<std::mutex>& lock, uint64_t end, bool cancellable);
    void dispatch(Packet packet);
    [[noreturn]] void silence(uint32_t number, Patience patience);
    void mark_lost(std::string reason) noexcept;
    // The next ones: called with the lock.
    void lose(std::string reason) noexcept;
    void lose_closed() noexcept;

    const std::string name_;
    const SessionFd socket_;
    std::mutex send_mutex_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<uint32_t, std::shared_ptr<Pending>> pending_;
    std::atomic<uint32_t> abandoned_{0};  // how many of them
    uint32_t last_number_ = 0;
    bool reading_ = false;
    std::atomic<bool> lost_{false};
    std::atomic<bool> closed_{false};
    std::string reason_;
};

}  // namespace softnpu
