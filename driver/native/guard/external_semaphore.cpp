// Waits for a POSIX semaphore without taking it. A process that takes a post and is killed before its work is
// done would lose it; so a waiter sleeps here until there is one, works, and takes it at the end.
//
// A named semaphore is a file with the sem_t of the C library. That of glibc (since 2.21, 64 bits) is one
// word of 64 bits: the value in the low half, the number of waiters in the high one. sem_post wakes one
// waiter, if there are any.

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <ctime>

namespace {

constexpr uint64_t ONE_WAITER = uint64_t{1} << 32;

uint32_t value_of(uint64_t data) { return static_cast<uint32_t>(data); }

long futex(std::atomic<uint64_t>* word, int operation, uint32_t number, const timespec* limit) {
    return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, number, limit, nullptr, 0);
}

}  // namespace

extern "C" {

// 1 as soon as the semaphore can be taken, 0 after timeout_ns. A killed waiter stays counted, which costs
// each later post only a system call.
int softnpu_semaphore_wait(std::atomic<uint64_t>* semaphore, int64_t timeout_ns) {
    if (value_of(semaphore->load()) != 0) return 1;
    if (timeout_ns <= 0) return 0;
    const timespec limit = {static_cast<time_t>(timeout_ns / 1000000000),
                            static_cast<long>(timeout_ns % 1000000000)};
    semaphore->fetch_add(ONE_WAITER);
    if (value_of(semaphore->load()) == 0) futex(semaphore, FUTEX_WAIT, 0, &limit);
    const uint64_t data = semaphore->fetch_sub(ONE_WAITER) - ONE_WAITER;
    if (value_of(data) == 0) return 0;
    // the post has woken one waiter: if it was this one, another may need waking
    if (data >= ONE_WAITER) futex(semaphore, FUTEX_WAKE, 1, nullptr);
    return 1;
}
}
