// This process's records in a trace of its daemon: calls, submissions, and the times when it learnt of their
// end. Section 12.2 of docs/interface.md. Without a trace a call costs two reads of a word.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "abi/ze_result.hpp"

namespace softnpu {

class Connection;

namespace trace {

// The word of the daemon's status page, or one that stays 0.
extern std::atomic<const uint64_t*> word;
// Whether this process has a ring, which it gives back when the trace is over, and whether it is checked.
enum : uint8_t { RING = 1, CHECKED = 2 };
extern std::atomic<uint8_t> joined;

inline bool wanted() {
    return __atomic_load_n(word.load(std::memory_order_relaxed), __ATOMIC_RELAXED) != 0 ||
           joined.load(std::memory_order_relaxed) != 0;
}

// From now on the traces of this session's daemon; its status page may be missing, else it stays mapped.
void watch(const std::shared_ptr<Connection>& connection, const uint8_t* page) noexcept;
void forget_in_child() noexcept;

// The device is about to see these submissions of a queue.
void submitted(uint64_t queue, uint64_t first, uint64_t last) noexcept;
// This process knows that submission of a queue, and those before it, have ended.
void completed(uint64_t queue, uint64_t sequence) noexcept;

// The call that this thread makes, if it is traced or checked.
const char* current_call() noexcept;

// A call of the program, between its construction and `end`.
class Call {
public:
    explicit Call(const char* name) noexcept;
    ze_result_t end(ze_result_t result) const noexcept;

private:
    const char* const name_;
    const bool may_wait_;
    const uint64_t begun_;
};

}  // namespace trace

}  // namespace softnpu
