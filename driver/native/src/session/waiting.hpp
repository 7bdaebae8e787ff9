// Waiting for the device: check, spin for a bounded time, then sleep in slices.
//
// A slice bounds how late a waiter learns of what nothing wakes it for. The end of its session, and whatever
// ends in this process, wakes it from a sleep with `OtherEnds`, whose slices are long. No driver lock is held
// while waiting.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/cancellation.hpp"
#include "base/clock.hpp"
#include "interface/words.hpp"
#include "session/connection.hpp"

namespace softnpu {

// The duration of spinning before sleeping, adapted to its success rate.
class SpinBudget {
public:
    // As `SOFTNPU_SPIN_US` bounds it. Turbo: 15 ms, never given up. With one core: none.
    explicit SpinBudget(bool turbo = false);

    // INVALID_ARGUMENT if that variable is not a number.
    static void check_environment();

    // How long to spin this time.
    uint64_t limit_ns() {
        if (turbo_ || misses_.load(std::memory_order_relaxed) < GIVE_UP_AFTER) return max_ns_;
        return skipped_.fetch_add(1, std::memory_order_relaxed) % TRY_AGAIN_EVERY == TRY_AGAIN_EVERY - 1
                   ? max_ns_
                   : 0;
    }
    // Whether to sleep at once where checking is in vain: not on a turbo queue.
    bool gives_way() const { return !turbo_; }
    void hit() { misses_.store(0, std::memory_order_relaxed); }
    // How long the last sleep was: so long may be the next one.
    bool was_long() const { return long_.load(std::memory_order_relaxed); }
    void slept(uint64_t ns) { long_.store(ns >= LONG_NS, std::memory_order_relaxed); }
    void miss() { misses_.fetch_add(1, std::memory_order_relaxed); }

private:
    static constexpr uint64_t LONG_NS = 5000000;
    static constexpr uint32_t GIVE_UP_AFTER = 8;
    static constexpr uint32_t TRY_AGAIN_EVERY = 32;

    const bool turbo_;
    const uint64_t max_ns_;
    std::atomic<uint32_t> misses_{0};
    std::atomic<uint32_t> skipped_{0};
    std::atomic<bool> long_{false};
};

constexpr uint64_t SLICE_NS = 250000000;       // also how late a thread is cancelled
constexpr uint64_t SHORT_SLICE_NS = 25000000;  // of other sleeps

// For what has no word of where the device runs.
inline bool pause_always() {
    pause_core();
    return true;
}

// Waits until `ready()`; false when `timeout` nanoseconds have passed. `sleep(ns, other_ends)` returns when
// it may have changed. `pause()` is called between two checks; false: it is in vain to check now. Throws
// DEVICE_LOST when the daemon is gone, within one slice of the sleep.
template <class Ready, class Sleep, class Pause = bool (&)()>
bool wait_until(Ready&& ready, Sleep&& sleep, uint64_t timeout, Connection& connection, SpinBudget& spin,
                Pause&& pause = pause_always) {
    if (ready()) return true;
    if (timeout == 0) {
        if (connection.is_lost()) throw connection.lost_error();
        return false;
    }
    const uint64_t start = now_ns();
    const uint64_t end = deadline_after(start, timeout);
    if (const uint64_t limit = spin.limit_ns()) {
        const uint64_t spin_end = std::min(end, start + limit);
        bool pays = true;
        do {
            for (int check = 0; check < 32 && pays; ++check) {
                if (ready()) {
                    spin.hit();
                    return true;
                }
                if (pause()) continue;
                pays = !spin.gives_way();
                if (pays) sched_yield();
            }
        } while (pays && now_ns() < spin_end);
        if (pays) spin.miss();
    }
    // if the last one was short: one word costs less than three
    for (bool is_soon = !spin.was_long();; is_soon = false) {
        const OtherEnds others = is_soon ? OtherEnds{} : connection.other_ends();
        if (ready()) return true;
        const uint64_t now = now_ns();
        if (now >= end) return false;
        {
            const CancellationPoint here;
            pthread_testcancel();
        }
        if (!connection.is_known_lost()) sleep(std::min(end - now, SLICE_NS), others);
        spin.slept(now_ns() - now);
        if (!ready() && connection.is_lost() && !ready()) throw connection.lost_error();
    }
}

}  // namespace softnpu
