// Time as the interface counts it: CLOCK_MONOTONIC in nanoseconds.
#pragma once

#include <time.h>

#include <cstdint>

namespace softnpu {

constexpr uint64_t FOREVER = UINT64_MAX;

inline uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000ull + static_cast<uint64_t>(now.tv_nsec);
}

// When `timeout` from `start` is over; FOREVER stays FOREVER.
inline uint64_t deadline_after(uint64_t start, uint64_t timeout) {
    return timeout > FOREVER - start ? FOREVER : start + timeout;
}

}  // namespace softnpu
