#include "session/connection.hpp"

#include <poll.h>

#include <cerrno>
#include <chrono>

#include "base/clock.hpp"
#include "base/runtime.hpp"
#include "wire/fault_wire.hpp"

namespace softnpu {

namespace {

constexpr uint64_t SECOND = 1000000000;
constexpr uint64_t READ_NS = SECOND;

uint64_t limit_of(Patience patience) { return (patience == Patience::supervisor ? 30 : 600) * SECOND; }

}  // namespace

Connection::Connection(Fd socket, std::string name) : name_(std::move(name)), socket_(std::move(socket)) {
    close_in_children(socket_.get());
}

Connection::~Connection() { forget_in_children(socket_.get()); }

Answer Connection::request(const MapWriter& message, const char* expected, size_t fds_expected,
                           const std::vector<int>& fds, Patience patience) {
    Pending pending;
    uint32_t number;
    {
        std::lock_guard lock(mutex_);
        if (lost_) throw lost_error();
        do {
            if (++last_number_ == 0) last_number_ = 1;
        } while (pending_.count(last_number_) != 0);
        number = last_number_;
        pending_[number] = &pending;
    }
    struct Forget {
        Connection& connection;
        uint32_t number;
        ~Forget() {
            std::lock_guard lock(connection.mutex_);
            connection.pending_.erase(number);
        }
    } forget{*this, number};
    send(number, message, fds);
    wait(number, pending, patience);
    const std::string tag = pending.fields.string("t");
    if (tag == "failed") {
        const Value* const fault = pending.fields.find("fault");
        throw Error(fault == nullptr ? Fault{} : decode_fault(*fault));
    }
    if (pending.packet.fds_lost) {
        give_back(pending.fields);
        throw error(ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY, "descriptors of this process", "none is free",
                    "room for what the daemon gives", "close some, or raise the limit (ulimit -n)");
    }
    if (tag != expected || pending.packet.fds.size() < fds_expected) {
        mark_lost("it answered '" + tag + format("' with %zu descriptors", pending.packet.fds.size()));
        throw lost_error();
    }
    return {std::move(pending.fields), std::move(pending.packet.fds)};
}

// An object whose descriptors did not arrive is of no use.
void Connection::give_back(const Value& answer) {
    const std::string tag = answer.string("t");
    if (tag == "context_created")
        request(MapWriter("context_destroy").put("context", answer.integer("context")), "ok");
    if (tag == "queue_created")
        request(MapWriter("queue_destroy").put("queue", answer.integer("queue")), "ok");
    if (tag == "graph_created")
        request(MapWriter("graph_destroy").put("graph", answer.integer("graph")), "ok");
    if (tag == "mem_allocated") {
        request(MapWriter("mem_free").put("memory", std::vector<uint64_t>{answer.integer("memory")}), "ok");
    }
}

bool Connection::is_lost() {
    if (!lost_) {
        pollfd entry{socket_.get(), POLLRDHUP, 0};
        if (poll(&entry, 1, 0) > 0) mark_lost("it has ended");
    }
    return lost_;
}

Error Connection::lost_error() {
    // the reason is written once, before `lost_`
    return error(ZE_RESULT_ERROR_DEVICE_LOST, "daemon at " + name_, lost_ ? reason_ : "it has ended",
                 "a running daemon", "initialise the driver anew; the daemon's log may say why it ended");
}

void Connection::send(uint32_t number, const MapWriter& message, const std::vector<int>& fds) {
    const std::string body = message.bytes();
    if (body.size() > MAX_BODY || fds.size() > MAX_FDS) {
        throw error(ZE_RESULT_ERROR_INVALID_SIZE, "control frame",
                    format("%zu bytes, %zu descriptors", body.size(), fds.size()),
                    format("at most %zu and %zu", MAX_BODY, MAX_FDS));
    }
    int code;
    {
        std::lock_guard lock(send_mutex_);
        code = send_frame(socket_.get(), number, body, fds);
    }
    if (code == 0) return;
    if (code == EMFILE || code == ENOMEM || code == ENOBUFS || code == ETOOMANYREFS) {
        throw error(ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY, "control frame", errno_text(code), "room to send it");
    }
    mark_lost(errno_text(code));
    throw lost_error();
}

void Connection::wait(uint32_t number, Pending& pending, Patience patience) {
    uint64_t end = now_ns() + limit_of(patience);
    std::unique_lock lock(mutex_);
    while (!pending.answered) {
        if (lost_) {
            lock.unlock();
            throw lost_error();
        }
        if (pending.progressed) {
            pending.progressed = false;
            end = now_ns() + limit_of(patience);
        }
        const uint64_t now = now_ns();
        if (now >= end) {
            lock.unlock();
            silence(number, patience);
        }
        if (reading_) {
            changed_.wait_for(lock, std::chrono::nanoseconds(end - now));
        } else {
            read_one(lock, end);
        }
    }
}

// Reads a frame for whoever waits for it. Called with the lock, which is given up meanwhile.
void Connection::read_one(std::unique_lock<std::mutex>& lock, uint64_t end) {
    reading_ = true;
    lock.unlock();
    std::optional<Packet> packet;
    std::string reason;
    try {
        const uint64_t now = now_ns();
        const uint64_t patience = std::min(READ_NS, end > now ? end - now : 0);
        pollfd entry{socket_.get(), POLLIN, 0};
        if (poll(&entry, 1, static_cast<int>(patience / 1000000) + 1) > 0) {
            packet = receive_frame(socket_.get());
            if (!packet) reason = "it has ended";
        }
    } catch (const Error& failure) {
        reason = failure.fault().text();
    } catch (const std::bad_alloc&) {
        reason = "no memory for its answer";
    }
    lock.lock();
    reading_ = false;
    if (packet) {
        try {
            dispatch(std::move(*packet));
        } catch (const Error& failure) {
            reason = "it sent a bad message: " + failure.fault().text();
        }
    }
    if (!reason.empty() && !lost_) {
        reason_ = reason;
        lost_ = true;
    }
    changed_.notify_all();
}

void Connection::dispatch(Packet packet) {
    Value fields = unpack(packet.body, "control message");
    const std::string tag = fields.string("t");
    if (packet.request == 0 && tag == "failed" && !lost_) {
        const Value* const fault = fields.find("fault");
        reason_ = fault == nullptr ? "it refused this session" : decode_fault(*fault).text();
        lost_ = true;
    }
    const auto found = pending_.find(packet.request);
    if (found == pending_.end()) return;
    Pending& pending = *found->second;
    if (tag == "progress") {
        pending.progressed = true;
    } else {
        pending.fields = std::move(fields);
        pending.packet = std::move(packet);
        pending.answered = true;
    }
}

// Nobody answers. A compiler that hangs is not the end of the session.
void Connection::silence(uint32_t number, Patience patience) {
    if (patience != Patience::compiler) {
        mark_lost(
            format("no answer within %llu s", static_cast<unsigned long long>(limit_of(patience) / SECOND)));
        throw lost_error();
    }
    request(MapWriter("cancel").put("request", number), "ok");
    throw error(ZE_RESULT_ERROR_MODULE_BUILD_FAILURE, "compiler", "it has said nothing for 600 s",
                "an answer, or progress", "try again; the daemon's log may say more");
}

void Connection::mark_lost(const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (!lost_) {
        reason_ = reason;
        lost_ = true;
    }
    changed_.notify_all();
}

}  // namespace softnpu
