#include "session/trace.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <mutex>

#include "base/clock.hpp"
#include "base/error_info.hpp"
#include "session/connection.hpp"
#include "session/trace_ring.hpp"

namespace softnpu::trace {

using namespace schema;

namespace {

constexpr uint64_t NONE = 0;
thread_local uint32_t thread_number = 0;

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
    joined = false;
    if (ring != nullptr) ring->close();
}

// Asks for a ring; throws what the daemon refused.
void join(Connection& connection, uint64_t number) {
    const Answer answer =
        connection.request(MapWriter(trace_join::TAG).put(trace_join::TRACE, number), trace_joined::TAG, 1);
    auto* const ring = new Ring(answer.fds[0], answer.fields.integer32(trace_joined::RECORDS));
    if (!ring->valid()) {
        delete ring;
        return;
    }
    current = ring;
    joined = true;
}

// Joins the trace that has begun, or leaves the one that has ended; one thread does it, the others go on.
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
    if (!joined.load(std::memory_order_relaxed)) return;
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
std::atomic<bool> joined{false};

void watch(const std::shared_ptr<Connection>& connection, const Fd* page_file) noexcept {
    while (joining.exchange(true)) sched_yield();
    leave();
    seen = 0;
    word = &NONE;
    try {
        if (session == nullptr) session = new std::weak_ptr<Connection>;
        *session = connection;
    } catch (...) {
        page_file = nullptr;
    }
    if (page_file != nullptr && has_pages(page_file->get(), status_page::SIZE)) {
        // stays mapped: another thread may be reading the word of the daemon before
        void* const page = mmap(nullptr, status_page::SIZE, PROT_READ, MAP_SHARED, page_file->get(), 0);
        if (page != MAP_FAILED) {
            word = reinterpret_cast<const uint64_t*>(static_cast<uint8_t*>(page) + status_page::TRACE);
        }
    }
    joining = false;
}

void forget_in_child() noexcept {
    word = &NONE;
    current = nullptr;
    joined = false;
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

Call::Call(const char* name) noexcept : name_(name), may_wait_(waits(name)), begun_((follow(), now_ns())) {
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
