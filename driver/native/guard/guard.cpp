// Survives truncation of shared memory by others. A shared memory file without a size seal may shrink at any
// moment; access to a page past its new end raises SIGBUS. For registered address ranges the handler maps
// zero pages there, from the fault to the end of the range, and marks the range as broken: the code continues
// with void data, and its caller checks the mark before using them. Any other SIGBUS goes to the previous
// handler.
//
// The handler uses atomics and mmap alone, and no lock: it runs in any thread at any instruction.

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>

#include "pass_on.hpp"

namespace {

constexpr size_t SLOTS = 1 << 16;
constexpr uintptr_t PAGE = 4096;

// A range is valid while `start` is not 0: it is stored last and cleared first.
struct Range {
    std::atomic<bool> taken;
    std::atomic<uintptr_t> start, end;
};

Range ranges[SLOTS];
std::atomic<uint32_t> marks[SLOTS];  // faults per range
std::atomic<size_t> used;            // all ranges are below it
struct sigaction previous;

static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

bool replace_pages(uintptr_t address) {
    const size_t count = used.load();
    for (size_t slot = 0; slot < count; slot++) {
        const uintptr_t start = ranges[slot].start.load();
        const uintptr_t end = ranges[slot].end.load();
        if (start == 0 || address < start || address >= end) continue;
        // mark first: a thread that reads zeros without a fault must see the mark
        marks[slot].fetch_add(1);
        const uintptr_t page = address & ~(PAGE - 1);
        return mmap(reinterpret_cast<void*>(page), end - page, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
    }
    return false;
}

void on_fault(int number, siginfo_t* info, void* context) {
    const int saved = errno;
    const bool replaced =
        info->si_code == BUS_ADRERR && replace_pages(reinterpret_cast<uintptr_t>(info->si_addr));
    errno = saved;
    if (!replaced) pass_on(previous, number, info, context);
}

}  // namespace

extern "C" {

// Handles SIGBUS; returns 0 or an errno. Call it once.
int softnpu_guard_install() {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, &previous) == 0 ? 0 : errno;
}

// Registers whole pages; returns the range's number, -1 if the table is full.
long softnpu_guard_add(uintptr_t start, size_t size) {
    for (size_t slot = 0; slot < SLOTS; slot++) {
        if (ranges[slot].taken.exchange(true)) continue;
        marks[slot].store(0);
        ranges[slot].end.store(start + size);
        ranges[slot].start.store(start);
        size_t count = used.load();
        while (count <= slot && !used.compare_exchange_weak(count, slot + 1)) {
        }
        return static_cast<long>(slot);
    }
    return -1;
}

// Forgets a range; call it before its pages are unmapped.
void softnpu_guard_remove(long slot) {
    ranges[slot].start.store(0);
    ranges[slot].taken.store(false);
}

// Returns each range's number of faults.
const std::atomic<uint32_t>* softnpu_guard_marks() { return marks; }
}
