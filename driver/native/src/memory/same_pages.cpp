#include "memory/same_pages.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <system_error>
#include <thread>

#include "interface/schema.hpp"

namespace softnpu {

namespace {

constexpr timespec LIMIT{1, 0};
constexpr timespec PAUSE{0, 50'000};

long futex(const void* word, int operation, uint32_t value, const timespec* limit) {
    return syscall(SYS_futex, word, operation, value, limit, nullptr, 0);
}

// A sleeper on a word of one mapping is woken through the other one only if the page is the same: the kernel
// knows a futex by the page that it lies in. Both only read.
bool wakes(const void* sleeper, const void* waker, uint32_t value) {
    std::atomic<bool> ended{false};
    bool woken = false, woke = false;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);  // the program's handlers run on its own threads
    try {
        std::thread thread([&] {
            woken = futex(sleeper, FUTEX_WAIT, value, &LIMIT) == 0;
            ended = true;
        });
        while (!ended) {
            woke = futex(waker, FUTEX_WAKE, 1, nullptr) == 1 || woke;
            syscall(SYS_nanosleep, &PAUSE, nullptr);  // no point at which a thread is cancelled
        }
        thread.join();
    } catch (const std::system_error&) {  // no thread can be had
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return woken && woke;
}

}  // namespace

bool is_same_page(uint64_t address, int fd, uint64_t offset) {
    // read from the file: at `address` it may be cut off
    uint32_t value;
    if (pread(fd, &value, sizeof value, static_cast<off_t>(offset)) != sizeof value) return false;
    void* const page =
        mmap(nullptr, schema::blob::PAGE, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset));
    if (page == MAP_FAILED) return false;
    const bool same = wakes(reinterpret_cast<const void*>(address), page, value);
    munmap(page, schema::blob::PAGE);
    return same;
}

}  // namespace softnpu
