// The interface's time, CLOCK_MONOTONIC in nanoseconds, and waiting by it.
#pragma once

#include <pthread.h>
#include <time.h>

#include <cstdint>
#include <mutex>

namespace softnpu {

constexpr uint64_t FOREVER = UINT64_MAX;

inline uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000ull + static_cast<uint64_t>(now.tv_nsec);
}

// The end of `timeout` from `start`; FOREVER stays FOREVER.
inline uint64_t deadline_after(uint64_t start, uint64_t timeout) {
    return timeout > FOREVER - start ? FOREVER : start + timeout;
}

// A condition that is waited for by CLOCK_MONOTONIC. That of the standard library needs a C library of 2020
// (pthread_cond_clockwait) for it, and waits by the clock on the wall with an older one.
class Condition {
public:
    Condition() {
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&condition_, &attributes);
        pthread_condattr_destroy(&attributes);
    }
    ~Condition() { pthread_cond_destroy(&condition_); }
    Condition(const Condition&) = delete;
    Condition& operator=(const Condition&) = delete;

    // Returns when it was notified, at `end`, or for no reason. A thread may be cancelled here.
    void wait_until(std::unique_lock<std::mutex>& lock, uint64_t end) {
        const timespec at{static_cast<time_t>(end / 1000000000), static_cast<long>(end % 1000000000)};
        pthread_cond_timedwait(&condition_, lock.mutex()->native_handle(), &at);
    }

    void notify_all() { pthread_cond_broadcast(&condition_); }

private:
    pthread_cond_t condition_;
};

}  // namespace softnpu
