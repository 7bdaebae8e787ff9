// How long to spin before sleeping, learnt from how often spinning succeeded.
#pragma once

#include <atomic>
#include <cstdint>

namespace softnpu {

class SpinBudget {
public:
    // As `SOFTNPU_SPIN_US` bounds it. Turbo: 15 ms, never given up. With one core: none.
    explicit SpinBudget(bool turbo = false);

    // INVALID_ARGUMENT if that variable is no number.
    static void check_environment();

    // How long to spin this time.
    uint64_t limit_ns() {
        if (turbo_ || misses_.load(std::memory_order_relaxed) < GIVE_UP_AFTER) return max_ns_;
        return skipped_.fetch_add(1, std::memory_order_relaxed) % TRY_AGAIN_EVERY == TRY_AGAIN_EVERY - 1
                   ? max_ns_
                   : 0;
    }
    void hit() { misses_.store(0, std::memory_order_relaxed); }
    void miss() { misses_.fetch_add(1, std::memory_order_relaxed); }

private:
    static constexpr uint32_t GIVE_UP_AFTER = 8;
    static constexpr uint32_t TRY_AGAIN_EVERY = 32;

    const bool turbo_;
    const uint64_t max_ns_;
    std::atomic<uint32_t> misses_{0};
    std::atomic<uint32_t> skipped_{0};
};

}  // namespace softnpu
