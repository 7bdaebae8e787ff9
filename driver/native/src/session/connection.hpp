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
#include "base/fd.hpp"
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
    ~Connection();

    // Sends a request and waits for the answer of this kind, which brings so many descriptors at least.
    // Throws what the daemon refused, or DEVICE_LOST when it is gone or silent.
    Answer request(const MapWriter& message, const char* expected, size_t fds_expected = 0,
                   const std::vector<int>& fds = {}, Patience patience = Patience::supervisor);

    // Whether the daemon is gone, asked anew (one system call).
    bool is_lost();
    // The error that every wait ends with then.
    Error lost_error();

private:
    struct Pending {
        bool progressed = false;
        bool answered = false;
        Packet packet;
        Value fields;
    };

    void give_back(const Value& answer);
    void send(uint32_t number, const MapWriter& message, const std::vector<int>& fds);
    void wait(uint32_t number, Pending& pending, Patience patience);
    void read_one(std::unique_lock<std::mutex>& lock, uint64_t end);
    void dispatch(Packet packet);
    [[noreturn]] void silence(uint32_t number, Patience patience);
    void mark_lost(const std::string& reason);

    const std::string name_;
    Fd socket_;
    std::mutex send_mutex_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<uint32_t, Pending*> pending_;
    uint32_t last_number_ = 0;
    bool reading_ = false;
    std::atomic<bool> lost_{false};
    std::string reason_;
};

}  // namespace softnpu
