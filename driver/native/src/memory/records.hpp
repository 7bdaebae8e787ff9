// Fences and events in shared memory, 64 bytes each of a block of the kind `control`: section 10 of
// docs/interface.md. A record does not keep its memory alive.
#pragma once

#include "interface/schema.hpp"
#include "interface/words.hpp"

namespace softnpu {

constexpr size_t RECORD_SIZE = schema::fence_record::SIZE;
static_assert(RECORD_SIZE == schema::event_record::SIZE);

// Set by a waiter before it sleeps: a signal has to wake it.
class WaitersMark {
public:
    explicit WaitersMark(uint8_t* at) : at_(at) {}

    bool is_set() const { return load32(at_) != 0; }
    void set() { store32(at_, 1); }
    // Called before the word is stored: a waiter that marks itself later reads the new word.
    bool test_and_clear() { return exchange32(at_, 0) != 0; }

private:
    uint8_t* at_;
};

// It is signalled for a submission when it holds the ticket of that submission, which is never used
// twice: a late signal for an earlier one, of any queue, has no effect on a later one.
class FenceRecord {
public:
    explicit FenceRecord(uint8_t* at) : at_(at) {}

    // The ticket of the submission that signalled it last.
    uint64_t signalled() const { return load64(at_); }
    bool is_signalled(uint64_t ticket) const { return signalled() == ticket; }
    // Result of the submission that signalled it last.
    uint32_t result() const { return load32(at_ + schema::fence_record::RESULT); }
    // The submission of this ticket is to signal it; 0: none.
    void arm(uint64_t ticket) { store64(at_ + schema::fence_record::ARMED, ticket); }

    // Sleeps while this is the last ticket, or until something else has ended, at most `timeout`; the caller
    // checks again. It has read the ticket before looking whether its wait is over: of a fence that another
    // thread has armed again its own ticket may never be seen.
    void sleep(uint64_t last, uint64_t timeout_ns, const OtherEnds& others) {
        WaitersMark mark(at_ + schema::fence_record::WAITERS);
        mark.set();
        full_fence();
        if (signalled() != last) return;
        // an earlier signal may have taken our mark with it
        if (!mark.is_set()) mark.set();
        futex_wait(at_, static_cast<uint32_t>(last), timeout_ns, others);
    }

private:
    uint8_t* at_;
};

// Commands change it and count that next to the state; the host stores the state alone.
class EventRecord {
public:
    explicit EventRecord(uint8_t* at) : at_(at) {}

    bool signalled() const { return is_signalled(load32(at_)); }
    void initialize() { store32(at_, schema::event_state::INITIAL); }
    void host_reset() { store32(at_, schema::event_state::HOST_RESET); }

    // Signalled by the host from now on; wakes every waiter.
    void host_signal() {
        WaitersMark mark(at_ + schema::event_record::WAITERS);
        const bool marked = mark.test_and_clear();
        store32(at_, schema::event_state::HOST_SIGNALLED);
        full_fence();
        if (marked || mark.is_set()) futex_wake(at_);
    }

    // Sleeps until the state changes, at most `timeout`; the caller checks again.
    void sleep(uint64_t timeout_ns) {
        WaitersMark mark(at_ + schema::event_record::WAITERS);
        mark.set();
        full_fence();
        const uint32_t state = load32(at_);
        if (is_signalled(state)) return;
        // a signal that was reset since may have taken our mark with it
        if (!mark.is_set()) mark.set();
        futex_wait(at_, state, timeout_ns);
    }

private:
    static bool is_signalled(uint32_t state) { return state > schema::event_state::HOST_RESET; }

    uint8_t* at_;
};

}  // namespace softnpu
