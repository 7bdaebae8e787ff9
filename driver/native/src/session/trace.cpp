#include "session/trace.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>
#include <unordered_map>

#include "base/clock.hpp"
#include "base/error_info.hpp"
#include "base/fd.hpp"
#include "interface/schema.hpp"
#include "interface/words.hpp"
#include "session/connection.hpp"

namespace softnpu::trace {

using namespace schema;

namespace {

// ---------------------------------------------------------------- the ring

constexpr size_t NAMES_SIZE = size_t{schema::trace_names::COUNT} * schema::trace_names::SIZE;

// A ring of trace records that this process writes: section 12.2 of docs/interface.md.
// The object is never destroyed, because any thread may be about to use it; its memory is given back.
class Ring {
public:
    // Maps the file; `valid` says whether that worked.
    Ring(const Fd& file, uint32_t records) noexcept;
    bool valid() const { return memory_ != nullptr; }

    // Writes one record, in place of the oldest. `name` lives as long as the process, or is null.
    void write(schema::TraceRecord record, const char* name) noexcept;
    // Unmaps the memory once no thread writes.
    void close() noexcept;

    std::atomic<uint32_t> users{0};

private:
    uint16_t index_of(const char* name) noexcept;
    size_t size() const;

    uint8_t* memory_ = nullptr;
    const uint32_t records_;
    std::atomic<uint64_t> last_{0};
    std::mutex mutex_;
    std::unordered_map<const char*, uint16_t> names_;
};

Ring::Ring(const Fd& file, uint32_t records) noexcept : records_(records) {
    struct stat found {};
    const bool sound = records != 0 && (records & (records - 1)) == 0;
    if (!sound || fstat(file.get(), &found) != 0 || static_cast<size_t>(found.st_size) < size()) return;
    void* const memory = mmap(nullptr, size(), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory != MAP_FAILED) memory_ = static_cast<uint8_t*>(memory);
}

size_t Ring::size() const { return NAMES_SIZE + size_t{records_} * sizeof(schema::TraceRecord); }

void Ring::write(schema::TraceRecord record, const char* name) noexcept {
    record.name = name == nullptr ? 0 : index_of(name);
    const uint64_t number = last_.fetch_add(1, std::memory_order_relaxed) + 1;
    record.begin = record.end = static_cast<uint32_t>(number);
    uint8_t* const at = memory_ + NAMES_SIZE + (number & (records_ - 1)) * sizeof record;
    constexpr size_t body = offsetof(schema::TraceRecord, kind), end = offsetof(schema::TraceRecord, end);
    store32(at, record.begin);
    // a reader that sees some of the body sees the number before it
    __atomic_thread_fence(__ATOMIC_RELEASE);
    std::memcpy(at + body, reinterpret_cast<const uint8_t*>(&record) + body, end - body);
    store32(at + end, record.end);
}

uint16_t Ring::index_of(const char* name) noexcept {
    std::lock_guard lock(mutex_);
    try {
        const auto known = names_.find(name);
        if (known != names_.end()) return known->second;
        if (names_.size() + 1 >= schema::trace_names::COUNT) return 0;
        const auto index = static_cast<uint16_t>(names_.size() + 1);
        const size_t length = std::min<size_t>(std::strlen(name), schema::trace_names::SIZE - 1);
        std::memcpy(memory_ + size_t{index} * schema::trace_names::SIZE, name, length);
        names_.emplace(name, index);
        return index;
    } catch (const std::bad_alloc&) {
        return 0;
    }
}

void Ring::close() noexcept {
    while (users != 0) sched_yield();
    munmap(memory_, size());
}

// ---------------------------------------------------------------- joining a trace

constexpr uint64_t NONE = 0;
thread_local uint32_t thread_number = 0;
thread_local const char* call = nullptr;

// Plain atomics: a forked child finds no lock that a thread of its parent holds.
std::atomic<Ring*> current{nullptr};
std::atomic<bool> joining{false};
std::atomic<uint64_t> seen{0};
// Never destroyed; a child leaks its copy.
std::weak_ptr<Connection>* session = nullptr;

uint32_t this_thread() {
    if (thread_number == 0) thread_number = static_cast<uint32_t>(syscall(SYS_gettid));
    return thread_number;
}

void leave() {
    Ring* const ring = current.exchange(nullptr);
    joined &= static_cast<uint8_t>(~RING);
    if (ring != nullptr) ring->close();
}

// Asks for a ring; throws the daemon's refusal.
void join(Connection& connection, uint64_t number) {
    const Answer answer =
        connection.request(MapWriter(trace_join::TAG).put(trace_join::TRACE, number), trace_joined::TAG, 1);
    auto* const ring = new Ring(answer.fds[0], answer.fields.integer32(trace_joined::RECORDS));
    if (!ring->valid()) {
        delete ring;
        return;
    }
    current = ring;
    joined |= RING;
}

// Joins a new trace, or leaves one that has ended; one thread does it, the others continue.
void follow() noexcept {
    const uint64_t number = __atomic_load_n(word.load(), __ATOMIC_ACQUIRE);
    if (number == seen || joining.exchange(true)) return;
    leave();
    seen = number;
    if (number != 0 && session != nullptr) {
        try {
            if (const auto connection = session->lock()) join(*connection, number);
        } catch (...) {
            // the trace is over, the daemon gone, or there is no ring left: this session is not traced
        }
    }
    joining = false;
}

void write(schema::TraceRecord record, const char* name) noexcept {
    Ring* const ring = current;
    if (ring == nullptr) return;
    ++ring->users;
    if (current == ring) {
        record.thread = this_thread();
        ring->write(record, name);
    }
    --ring->users;
}

bool waits(const char* call) {
    return std::strstr(call, "Synchronize") != nullptr || std::strstr(call, "pfnCreate") != nullptr ||
           std::strstr(call, "pfnGraphInitialize") != nullptr;
}

void write_about(uint16_t kind, uint64_t first, uint64_t second, uint64_t third) noexcept {
    if ((joined.load(std::memory_order_relaxed) & RING) == 0) return;
    schema::TraceRecord record{};
    record.kind = kind;
    record.time = now_ns();
    record.first = first;
    record.second = second;
    record.third = third;
    write(record, nullptr);
}

}  // namespace

std::atomic<const uint64_t*> word{&NONE};
std::atomic<uint8_t> joined{0};

void watch(const std::shared_ptr<Connection>& connection, const uint8_t* page) noexcept {
    while (joining.exchange(true)) sched_yield();
    leave();
    seen = 0;
    word = &NONE;
    try {
        if (session == nullptr) session = new std::weak_ptr<Connection>;
        *session = connection;
        if (page != nullptr) word = reinterpret_cast<const uint64_t*>(page + status_page::TRACE);
    } catch (...) {
        // without memory for that this session is not traced
    }
    joining = false;
}

void forget_in_child() noexcept {
    word = &NONE;
    current = nullptr;
    joined = 0;
    joining = false;
    seen = 0;
    session = nullptr;
    thread_number = 0;
}

void submitted(uint64_t queue, uint64_t first, uint64_t last) noexcept {
    write_about(trace_kind::SUBMIT, queue, first, last);
}

void completed(uint64_t queue, uint64_t sequence) noexcept {
    write_about(trace_kind::COMPLETE, queue, sequence, 0);
}

const char* current_call() noexcept { return call == nullptr ? "a call" : call; }

Call::Call(const char* name) noexcept : name_(name), may_wait_(waits(name)), begun_((follow(), now_ns())) {
    call = name;
    if (!may_wait_) return;
    schema::TraceRecord record{};
    record.kind = trace_kind::CALL;
    record.flags = trace_flag::BEGIN;
    record.time = begun_;
    write(record, name_);
}

ze_result_t Call::end(ze_result_t result) const noexcept {
    schema::TraceRecord record{};
    record.kind = trace_kind::CALL;
    record.flags = may_wait_ ? trace_flag::END : 0;
    record.time = begun_;
    record.duration = now_ns() - begun_;
    record.result = result;
    write(record, name_);
    return result;
}

}  // namespace softnpu::trace
