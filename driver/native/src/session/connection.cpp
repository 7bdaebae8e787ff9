#include "session/connection.hpp"

#include <poll.h>

#include <cerrno>
#include <chrono>

#include "base/cancellation.hpp"
#include "base/clock.hpp"
#include "wire/fault_wire.hpp"

namespace softnpu {

namespace {

constexpr uint64_t SECOND = 1000000000;
constexpr uint64_t READ_NS = SECOND;

uint64_t limit_of(Patience patience) { return (patience == Patience::supervisor ? 30 : 600) * SECOND; }

std::string closed_by_program(const char* what, int number) {
    return format("this program has closed its %s (descriptor %d)", what, number);
}

}  // namespace

Connection::Connection(Fd socket, std::string name) : name_(std::move(name)), socket_(std::move(socket)) {}

// A request from the moment when it has a number until its answer is taken, or nobody waits for it any more.
class Connection::Asking {
public:
    Asking(Connection& connection, uint32_t number, std::shared_ptr<Pending> pending, uint32_t* late)
        : connection_(connection), number_(number), pending_(std::move(pending)), late_(late) {}
    Asking(const Asking&) = delete;
    Asking& operator=(const Asking&) = delete;

    void sent() { sent_ = true; }

    ~Asking() {
        std::lock_guard lock(connection_.mutex_);
        if (!sent_ || pending_->answered || connection_.lost_) {
            connection_.pending_.erase(number_);
        } else if (late_ != nullptr) {
            *late_ = number_;
        } else {
            pending_->abandoned = true;
            ++connection_.abandoned_;
        }
    }

private:
    Connection& connection_;
    const uint32_t number_;
    const std::shared_ptr<Pending> pending_;
    uint32_t* const late_;
    bool sent_ = false;
};

Answer Connection::request(const MapWriter& message, const char* expected, size_t fds_expected,
                           const std::vector<int>& fds, Patience patience, uint32_t* late) {
    if (abandoned_ != 0) give_back_abandoned();
    uint32_t number;
    const std::shared_ptr<Pending> pending = add(number);
    {
        Asking asking(*this, number, pending, late);
        send(number, message, fds);
        asking.sent();
        wait(number, *pending, patience, late != nullptr || patience != Patience::supervisor);
    }
    Answer answer = take(*pending);
    const std::string tag = answer.fields.string("t");
    if (tag != expected || answer.fds.size() < fds_expected) {
        mark_lost("it answered '" + tag + format("' with %zu descriptors", answer.fds.size()));
        throw lost_error();
    }
    return answer;
}

Answer Connection::late_answer(uint32_t number) {
    std::shared_ptr<Pending> pending;
    {
        std::lock_guard lock(mutex_);
        const auto found = pending_.find(number);
        if (found == pending_.end()) throw lost_error();
        pending = found->second;
    }
    wait(number, *pending, Patience::supervisor, false);
    {
        std::lock_guard lock(mutex_);
        pending_.erase(number);
    }
    return take(*pending);
}

std::shared_ptr<Connection::Pending> Connection::add(uint32_t& number) {
    std::lock_guard lock(mutex_);
    if (lost_) throw lost_error();
    do {
        if (++last_number_ == 0) last_number_ = 1;
    } while (pending_.count(last_number_) != 0);
    number = last_number_;
    return pending_[number] = std::make_shared<Pending>();
}

// What an answer brought, or what the daemon refused.
Answer Connection::take(Pending& pending) {
    if (pending.fields.string("t") == "failed") {
        const Value* const fault = pending.fields.find("fault");
        throw Error(fault == nullptr ? ErrorInfo{} : decode_fault(*fault));
    }
    if (pending.packet.fds_lost) {
        give_back(pending.fields);
        throw error(ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY, "descriptors of this process", "none is free",
                    "room for what the daemon gives", "close some, or raise the limit (ulimit -n)");
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

// Answers that came when nobody asked for them any more.
void Connection::give_back_abandoned() {
    std::vector<Value> answers;
    {
        std::lock_guard lock(mutex_);
        for (auto entry = pending_.begin(); entry != pending_.end();) {
            if (entry->second->abandoned && entry->second->answered) {
                answers.push_back(std::move(entry->second->fields));
                entry = pending_.erase(entry);
                --abandoned_;
            } else {
                ++entry;
            }
        }
    }
    for (const Value& answer : answers) give_back(answer);
}

bool Connection::is_lost() {
    if (lost_) return true;
    if (!socket_.is_ours()) {
        mark_lost(closed_by_program("connection", socket_.get()));
        return true;
    }
    return has_ended();
}

bool Connection::has_ended() {
    if (lost_) return true;
    pollfd entry{socket_.get(), POLLRDHUP, 0};
    if (poll(&entry, 1, 0) > 0) {
        std::lock_guard lock(mutex_);
        lose_closed();
    }
    return lost_;
}

Error Connection::lost_error() {
    // the reason is written once, before `lost_`; there is none if there was no memory for it
    std::string reason = !lost_ ? "it has ended" : reason_.empty() ? "no memory for its answer" : reason_;
    return error(ZE_RESULT_ERROR_DEVICE_LOST, "daemon at " + name_, std::move(reason),
                 "a running daemon and the descriptors of its session",
                 "initialise the driver anew; the daemon's log may say why it ended");
}

void Connection::descriptor_is_gone(const char* what, int number) {
    mark_lost(closed_by_program(what, number));
    throw lost_error();
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
        if (!socket_.is_ours()) descriptor_is_gone("connection", socket_.get());
        code = send_frame(socket_.get(), number, body, fds);
    }
    // a daemon that has closed: what it said before, and then the end, is for the reader
    if (code == 0 || code == EPIPE || code == ECONNRESET) return;
    if (code == EMFILE || code == ENOMEM || code == ENOBUFS || code == ETOOMANYREFS) {
        throw error(ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY, "control frame", errno_text(code), "room to send it");
    }
    mark_lost(errno_text(code));
    throw lost_error();
}

void Connection::wait(uint32_t number, Pending& pending, Patience patience, bool cancellable) {
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
            const CancellationPoint here(cancellable);
            changed_.wait_for(lock, std::chrono::nanoseconds(end - now));
        } else {
            read_one(lock, end, cancellable);
        }
    }
}

// Reads a frame for whoever waits for it. Called with the lock, which is given up meanwhile.
void Connection::read_one(std::unique_lock<std::mutex>& lock, uint64_t end, bool cancellable) {
    // others wait for this thread: however it leaves, the next one reads
    struct Reader {
        Connection& connection;
        std::unique_lock<std::mutex>& lock;
        ~Reader() {
            if (!lock.owns_lock()) lock.lock();
            connection.reading_ = false;
            connection.changed_.notify_all();
        }
    } reader{*this, lock};
    reading_ = true;
    try {
        read_and_dispatch(lock, end, cancellable);
    } catch (const std::bad_alloc&) {
        // a frame may be gone, and with it memory or an object that it brought
        if (!lock.owns_lock()) lock.lock();
        lose({});
    }
}

void Connection::read_and_dispatch(std::unique_lock<std::mutex>& lock, uint64_t end, bool cancellable) {
    lock.unlock();
    if (!socket_.is_ours()) {
        mark_lost(closed_by_program("connection", socket_.get()));
        return lock.lock();
    }
    const uint64_t now = now_ns();
    const uint64_t patience = std::min(READ_NS, end > now ? end - now : 0);
    pollfd entry{socket_.get(), POLLIN, 0};
    int ready;
    {
        // nothing is read here: the next reader finds it
        const CancellationPoint here(cancellable);
        ready = poll(&entry, 1, static_cast<int>(patience / 1000000) + 1);
    }
    if (ready <= 0) return lock.lock();
    try {
        std::optional<Packet> packet = receive_frame(socket_.get());
        lock.lock();
        if (!packet) return lose_closed();
        dispatch(std::move(*packet));
    } catch (const Error& failure) {
        if (!lock.owns_lock()) lock.lock();
        lose("it sent a bad message: " + failure.fault().text());
    }
}

void Connection::dispatch(Packet packet) {
    Value fields = unpack(packet.body, "control message");
    const std::string tag = fields.string("t");
    if (packet.request == 0 && tag == "failed") {
        const Value* const fault = fields.find("fault");
        lose(fault == nullptr ? "it refused this session" : decode_fault(*fault).text());
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

void Connection::mark_lost(std::string reason) noexcept {
    std::lock_guard lock(mutex_);
    lose(std::move(reason));
}

void Connection::lose(std::string reason) noexcept {
    if (!lost_) {
        reason_ = std::move(reason);
        lost_ = true;
    }
    changed_.notify_all();
}

void Connection::lose_closed() noexcept {
    if (!lost_) closed_ = true;
    lose("it has ended");
}

}  // namespace softnpu
