// Single aligned accesses to words shared with other processes, and futex waits on these words.
#pragma once

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
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

// How long to sleep at most where nothing wakes a waiter when the daemon dies.
constexpr uint64_t BLIND_SLICE_NS = 50000000;

// What ends a sleep besides the word that is waited for.
struct OtherEnds {
    uint8_t* life;          // section 12 of docs/interface.md; null: nothing else
    int socket;             // of the session, which ends right after its life
    uint8_t* count;         // of what ends in this process: its low half
    uint32_t count_before;  // read before looking whether the wait is over
};

// Whether nobody holds a life.
inline bool is_ended(uint32_t life) { return (life & FUTEX_TID_MASK) == 0; }

// Sleeps on all these words; false if it was for so long. On the one, for a short slice at most, if there are
// no others or the kernel watches one word at a time.
inline bool futex_wait(uint8_t* at, uint32_t expected, uint64_t timeout_ns, const OtherEnds& others) {
    const uint64_t blind_ns = timeout_ns < BLIND_SLICE_NS ? timeout_ns : BLIND_SLICE_NS;
    if (others.life == nullptr) return futex_wait(at, expected, blind_ns);
    const uint32_t life = load32(others.life);
    if (is_ended(life)) {
        // a dying process closes its sockets after that
        pollfd entry{others.socket, POLLRDHUP, 0};
        ::poll(&entry, 1, static_cast<int>(blind_ns / 1000000));
        return true;
    }
    constexpr long FUTEX_WAITV = 449;  // from Linux 5.16 on; older headers lack it, and its flag of 32 bits
    constexpr uint32_t OF_32_BITS = 2;
    struct {
        uint64_t value, address;
        uint32_t flags, reserved;
    } const words[] = {{expected, reinterpret_cast<uintptr_t>(at), OF_32_BITS, 0},
                       {life, reinterpret_cast<uintptr_t>(others.life), OF_32_BITS, 0},
                       {others.count_before, reinterpret_cast<uintptr_t>(others.count), OF_32_BITS, 0}};
    timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    const uint64_t end_ns = static_cast<uint64_t>(end.tv_nsec) + timeout_ns;
    end.tv_sec += static_cast<time_t>(end_ns / 1000000000);
    end.tv_nsec = static_cast<long>(end_ns % 1000000000);
    const bool is_woken = syscall(FUTEX_WAITV, words, 3, 0, &end, CLOCK_MONOTONIC) >= 0;
    const int error = errno;
    // the kernel has woken one of this session's threads
    if (is_ended(load32(others.life))) futex_wake(others.life);
    if (is_woken || error == EAGAIN || error == EINTR) return true;
    return error != ETIMEDOUT && futex_wait(at, expected, blind_ns);
}

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
