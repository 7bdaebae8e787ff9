// Single aligned accesses to words shared with other processes, and futex waits on these words.
#pragma once

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace softnpu {

inline uint32_t load32(const uint8_t* at) {
    return __atomic_load_n(reinterpret_cast<const uint32_t*>(at), __ATOMIC_ACQUIRE);
}
inline uint64_t load64(const uint8_t* at) {
    return __atomic_load_n(reinterpret_cast<const uint64_t*>(at), __ATOMIC_ACQUIRE);
}
inline void store32(uint8_t* at, uint32_t value) {
    __atomic_store_n(reinterpret_cast<uint32_t*>(at), value, __ATOMIC_RELEASE);
}
inline void store64(uint8_t* at, uint64_t value) {
    __atomic_store_n(reinterpret_cast<uint64_t*>(at), value, __ATOMIC_RELEASE);
}
inline uint32_t exchange32(uint8_t* at, uint32_t value) {
    return __atomic_exchange_n(reinterpret_cast<uint32_t*>(at), value, __ATOMIC_ACQ_REL);
}
inline void add32(uint8_t* at, int32_t value) {
    __atomic_add_fetch(reinterpret_cast<uint32_t*>(at), static_cast<uint32_t>(value), __ATOMIC_ACQ_REL);
}
inline void full_fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Sleeps at most `timeout_ns` while the word equals `expected`; the caller checks again. False: for so long.
// A shared futex.
inline bool futex_wait(uint8_t* at, uint32_t expected, uint64_t timeout_ns) {
    const timespec limit{static_cast<time_t>(timeout_ns / 1000000000),
                         static_cast<long>(timeout_ns % 1000000000)};
    return syscall(SYS_futex, at, FUTEX_WAIT, expected, &limit, nullptr, 0) == 0 || errno != ETIMEDOUT;
}
inline void futex_wake(uint8_t* at) { syscall(SYS_futex, at, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0); }

inline void pause_core() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// The processor of this thread, plus 1, as in a ring; 0: not known.
inline uint32_t this_core() { return static_cast<uint32_t>(sched_getcpu() + 1); }

// What the engine tells drivers in the place of its processor: it runs the submissions of others first.
constexpr uint32_t BUSY = 0xFFFFFFFF;

// Between two looks at a word of the engine, of which `core` tells where it runs; false if looking is in
// vain: it is busy, or needs this processor.
inline bool pause_for(const uint8_t* core) {
    const uint32_t other = load32(core);
    if (other == BUSY || (other != 0 && other == this_core())) return false;
    pause_core();
    return true;
}

}  // namespace softnpu
