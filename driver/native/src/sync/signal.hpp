// A fence or an event in shared memory: 64 bytes of a block of the kind `control`.
#pragma once

#include <memory>

#include "memory/block.hpp"
#include "sync/words.hpp"

namespace softnpu {

constexpr size_t SIGNAL_SIZE = 64;

enum class SignalState : uint32_t {
    initial = 0,
    device_reset = 1,
    host_reset = 2,
    device_signalled = 4,
    host_signalled = 5
};

// The words of one signal. Does not keep its memory alive.
class Signal {
public:
    explicit Signal(uint8_t* at) : at_(at) {}

    bool signalled() const { return load32(at_) > static_cast<uint32_t>(SignalState::host_reset); }
    // Result of the submission that signalled it.
    uint32_t result() const { return load32(at_ + RESULT); }

    // Not signalled (or signalled from the start); `submission` will signal it, 0: nobody yet.
    void arm(SignalState state, uint64_t submission) {
        store64(at_ + SUBMISSION, submission);
        store32(at_ + RESULT, 0);
        store32(at_ + CANCEL, 0);
        store32(at_, static_cast<uint32_t>(state));
    }

    // Signalled by the host from now on; wakes every waiter.
    void host_signal() {
        // the mark is taken before the state is stored: a waiter that marks itself later finds the new state
        const uint32_t marked = exchange32(at_ + WAITERS, 0);
        store32(at_, static_cast<uint32_t>(SignalState::host_signalled));
        full_fence();
        if (marked != 0 || load32(at_ + WAITERS) != 0) futex_wake(at_);
    }

    // Sleeps until the state changes, at most `timeout`; the caller looks again.
    void sleep(uint64_t timeout_ns) {
        store32(at_ + WAITERS, 1);
        full_fence();
        const uint32_t state = load32(at_);
        if (state > static_cast<uint32_t>(SignalState::host_reset)) return;
        // a signal that was reset since may have taken our mark with it
        if (load32(at_ + WAITERS) == 0) store32(at_ + WAITERS, 1);
        futex_wait(at_, state, timeout_ns);
    }

private:
    static constexpr size_t WAITERS = 4, RESULT = 8, CANCEL = 12, SUBMISSION = 16;
    uint8_t* at_;
};

}  // namespace softnpu
