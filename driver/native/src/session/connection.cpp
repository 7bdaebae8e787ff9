#include "session/connection.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/cancellation.hpp"
#include "base/clock.hpp"
#include "interface/schema.hpp"
#include "wire/msgpack.hpp"

namespace softnpu {

using namespace schema;

namespace {

constexpr uint64_t SECOND = 1000000000;
constexpr uint64_t READ_NS = SECOND;
constexpr uint64_t LOOK_NS = 1000000;

uint64_t limit_of(Timeout timeout) { return (timeout == Timeout::supervisor ? 30 : 600) * SECOND; }

uint32_t endings = 0;  // a futex word, changed atomically

std::string closed_by_program(const char* what, int number) {
    return format("this program has closed its %s (descriptor %d)", what, number);
}

}  // namespace

void note_ending() noexcept {
    auto* const count = reinterpret_cast<uint8_t*>(&endings);
    add32(count, 1);
    futex_wake(count);
}

Connection::Connection(Fd socket, std::string name) : name_(std::move(name)), socket_(std::move(socket)) {}

Connection::~Connection() {
    // other processes may have a copy of the descriptor, which would keep the session
    if (socket_.is_ours()) shutdown(socket_.get(), SHUT_RDWR);
}

// A request from the assignment of its number until its answer arrives or its thread is cancelled.
class Connection::Request {
public:
    Request(Connection& connection, uint32_t number, std::shared_ptr<Pending> pending, uint32_t* interrupted)
        : connection_(connection), number_(number), pending_(std::move(pending)), interrupted_(interrupted) {}
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    void sent() { sent_ = true; }

    ~Request() {
        std::lock_guard lock(connection_.mutex_);
        if (!sent_ || pending_->answered || connection_.lost_) {
            connection_.pending_.erase(number_);
        } else if (interrupted_ != nullptr) {
            *interrupted_ = number_;
        } else {
            pending_->abandoned = true;
            ++connection_.abandoned_;
        }
    }

private:
    Connection& connection_;
    const uint32_t number_;
    const std::shared_ptr<Pending> pending_;
    uint32_t* const interrupted_;
    bool sent_ = false;
};

Answer Connection::request(const MapWriter& message, std::string_view expected, size_t fds_expected,
                           const std::vector<int>& fds, Timeout timeout, uint32_t* interrupted) {
    if (abandoned_ != 0) release_abandoned();
    uint32_t number;
    const std::shared_ptr<Pending> pending = add(number);
    {
        Request sending(*this, number, pending, interrupted);
        send(number, message, fds);
        sending.sent();
        const bool is_work = timeout == Timeout::compiler || timeout == Timeout::loader;
        wait(number, *pending, timeout, interrupted != nullptr || is_work);
    }
    Answer answer = unwrap(*pending);
    const std::string tag = answer.fields.string(TAG_FIELD);
    if (tag != expected || answer.fds.size() < fds_expected) {
        mark_lost("it answered '" + tag + format("' with %zu descriptors", answer.fds.size()));
        throw lost_error();
    }
    return answer;
}

Answer Connection::await_answer(uint32_t number) {
    std::shared_ptr<Pending> pending;
    {
        std::lock_guard lock(mutex_);
        const auto entry = pending_.find(number);
        if (entry == pending_.end()) throw lost_error();
        pending = entry->second;
    }
    wait(number, *pending, Timeout::supervisor, false);
    {
        std::lock_guard lock(mutex_);
        pending_.erase(number);
    }
    return unwrap(*pending);
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

// The content of an answer. Throws the daemon's refusal.
Answer Connection::unwrap(Pending& pending) {
    if (pending.fields.string(TAG_FIELD) == failed::TAG) {
        const Value* const info = pending.fields.find(failed::INFO);
        throw Error(info == nullptr ? ErrorInfo{} : decode_error_info(*info));
    }
    if (pending.packet.fds_lost) {
        release(pending.fields);
        throw out_of_host_memory("descriptors of this process", "none is free",
                                 "room for what the daemon gives",
                                 "close some, or raise the limit (ulimit -n)");
    }
    return {std::move(pending.fields), std::move(pending.packet.fds)};
}

// Destroys an object whose descriptors did not arrive.
void Connection::release(const Value& answer) {
    const std::string tag = answer.string(TAG_FIELD);
    if (tag == context_created::TAG)
        request(MapWriter(context_destroy::TAG)
                    .put(context_destroy::CONTEXT, answer.integer(context_created::CONTEXT)),
                ok::TAG);
    if (tag == queue_created::TAG)
        request(MapWriter(queue_destroy::TAG).put(queue_destroy::QUEUE, answer.integer(queue_created::QUEUE)),
                ok::TAG);
    if (tag == graph_created::TAG)
        request(MapWriter(graph_destroy::TAG).put(graph_destroy::GRAPH, answer.integer(graph_created::GRAPH)),
                ok::TAG);
    if (tag == mem_allocated::TAG) {
        request(MapWriter(mem_free::TAG)
                    .put(mem_free::MEMORY, std::vector{answer.integer(mem_allocated::MEMORY)}),
                ok::TAG);
    }
}

// Releases the answers to cancelled threads.
void Connection::release_abandoned() {
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
    for (const Value& answer : answers) release(answer);
}

bool Connection::is_lost() {
    if (lost_) return true;
    if (!socket_.is_ours()) {
        mark_lost(closed_by_program("connection", socket_.get()));
        return true;
    }
    return has_ended();
}

bool Connection::had_ended() {
    const uint64_t now = now_ns();
    if (now - looked_ns_.load(std::memory_order_relaxed) < LOOK_NS) return lost_;
    looked_ns_.store(now, std::memory_order_relaxed);
    return has_ended();
}

bool Connection::has_ended() {
    if (lost_) return true;
    pollfd entry{socket_.get(), POLLRDHUP, 0};
    if (poll(&entry, 1, 0) > 0) {
        std::unique_lock lock(mutex_);
        if (!lost_) closed_ = true;
        // earlier frames may contain the reason
        while (!lost_ && !reading_) read_one(lock, 0, false);
    }
    return lost_;
}

OtherEnds Connection::other_ends() const {
    auto* const count = reinterpret_cast<uint8_t*>(&endings);
    return {life_, socket_.get(), count, load32(count)};
}

Error Connection::lost_error() {
    // the reason is written once, before `lost_`
    std::string reason = !lost_ ? "it has ended" : reason_.empty() ? "no memory for its answer" : reason_;
    return device_lost("daemon at " + name_, std::move(reason),
                       "a running daemon and the descriptors of its session",
                       "initialise the driver again; the daemon's log may say why it ended");
}

void Connection::descriptor_is_gone(const char* what, int number) {
    mark_lost(closed_by_program(what, number));
    throw lost_error();
}

void Connection::send(uint32_t number, const MapWriter& message, const std::vector<int>& fds) {
    const std::string body = message.bytes();
    if (body.size() > frame::MAX_BODY || fds.size() > frame::MAX_FDS) {
        throw invalid_size("control frame", format("%zu bytes, %zu descriptors", body.size(), fds.size()),
                           format("at most %u and %u", frame::MAX_BODY, frame::MAX_FDS));
    }
    int code;
    {
        std::lock_guard lock(send_mutex_);
        if (!socket_.is_ours()) descriptor_is_gone("connection", socket_.get());
        code = send_frame(socket_.get(), number, body, fds);
    }
    // the reader still receives earlier frames of a closed daemon
    if (code == 0 || code == EPIPE || code == ECONNRESET) return;
    // a frame is sent as a whole or not at all: the session is as it was
    if (code == EMFILE || code == ENOMEM || code == ENOBUFS || code == ETOOMANYREFS) {
        throw out_of_host_memory("control frame", errno_text(code), "room to send it");
    }
    if (!fds.empty()) {
        throw invalid_argument(format("descriptor %d", fds.front()), errno_text(code),
                               "an open file that may be passed on");
    }
    mark_lost(errno_text(code));
    throw lost_error();
}

void Connection::wait(uint32_t number, Pending& pending, Timeout timeout, bool cancellable) {
    uint64_t end = now_ns() + limit_of(timeout);
    std::unique_lock lock(mutex_);
    while (!pending.answered) {
        if (lost_) {
            lock.unlock();
            throw lost_error();
        }
        if (pending.progressed) {
            pending.progressed = false;
            end = now_ns() + limit_of(timeout);
        }
        const uint64_t now = now_ns();
        if (now >= end) {
            lock.unlock();
            time_out(number, timeout);
        }
        if (reading_) {
            const CancellationPoint here(cancellable);
            changed_.wait_until(lock, end);
        } else {
            read_one(lock, end, cancellable);
        }
    }
}

// Reads a frame for all waiters. Called with the lock, which is released meanwhile.
void Connection::read_one(std::unique_lock<std::mutex>& lock, uint64_t end, bool cancellable) {
    // however this thread leaves, the next waiter reads
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
        // a frame with memory or an object may be lost
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
    const uint64_t timeout = std::min(READ_NS, end > now ? end - now : 0);
    pollfd entry{socket_.get(), POLLIN, 0};
    int ready;
    {
        // cancelled here it has read nothing
        const CancellationPoint here(cancellable);
        ready = poll(&entry, 1, static_cast<int>(timeout / 1000000) + 1);
    }
    if (ready <= 0) return lock.lock();
    try {
        std::optional<Packet> packet = receive_frame(socket_.get());
        lock.lock();
        if (!packet) return lose_closed();
        dispatch(std::move(*packet));
    } catch (const Error& failure) {
        if (!lock.owns_lock()) lock.lock();
        lose("it sent a bad message: " + failure.info().text());
    }
}

void Connection::dispatch(Packet packet) {
    Value fields = unpack(packet.body, "control message");
    const std::string tag = fields.string(TAG_FIELD);
    if (packet.request == 0 && tag == failed::TAG) {
        const Value* const info = fields.find(failed::INFO);
        lose(info == nullptr ? "it refused this session" : decode_error_info(*info).text());
    }
    const auto entry = pending_.find(packet.request);
    if (entry == pending_.end()) return;
    Pending& pending = *entry->second;
    if (tag == progress::TAG) {
        pending.progressed = true;
    } else {
        pending.fields = std::move(fields);
        pending.packet = std::move(packet);
        pending.answered = true;
    }
}

// No answer came in time. A compiler that hangs does not end the session.
void Connection::time_out(uint32_t number, Timeout timeout) {
    if (timeout != Timeout::compiler) {
        mark_lost(format("no answer within %lu s", limit_of(timeout) / SECOND));
        throw lost_error();
    }
    request(MapWriter(cancel::TAG).put(cancel::REQUEST, number), ok::TAG);
    throw build_failure("compiler", "no answer for 600 s", "an answer, or progress",
                        "try again; the daemon's log may say more");
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
    note_ending();
}

void Connection::lose_closed() noexcept {
    if (!lost_) closed_ = true;
    lose("it has ended");
}

}  // namespace softnpu
