// Tells when the program itself uses memory that a device may be using: for `softnpu check`. Watched pages
// are protected; the first access is written down, opens them, and goes on.
//
// A line is `@ TIME ADDRESS WRITE MODE` (decimal); the frames follow, of Python as it writes them, then of
// C++ as the C library does. The handler uses atomics, mprotect, write and an unwinder that was loaded
// before: it runs in any thread at any instruction.

#include <execinfo.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/ucontext.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>

#include "pass_on.hpp"

extern "C" int softnpu_watch_ask();

namespace {

constexpr size_t SLOTS = 1 << 16;
constexpr uintptr_t PAGE = 4096;
constexpr int FRAMES = 16;
constexpr timeval ANSWER{60, 0};  // it analyses meanwhile; a program is not to hang with it

// What may not be done with a region: nothing is denied, writing, everything, everything for good (freed),
// reading what nobody has written. BEYOND: the access was behind its end. GONE: freed, and unmapped since.
enum Mode : int { OPEN = 0, READ_ONLY = 1, CLOSED = 2, FREED = 3, UNWRITTEN = 4, BEYOND = 5, GONE = 6 };

// A region is valid while `start` is not 0: it is stored last and cleared first. `guard`: the bytes behind
// its pages that are closed, until they are `passed`.
struct Region {
    std::atomic<bool> taken, passed;
    std::atomic<uintptr_t> start, size, guard;
    std::atomic<int> mode;

    uintptr_t pages() const { return (size + PAGE - 1) & ~(PAGE - 1); }
};

using GetThread = void* (*)();
using DumpFrames = void (*)(int file, void* thread);

Region regions[SLOTS];
std::atomic<size_t> used;  // all regions are below it
std::atomic<int> output{-1};
// Where `softnpu check --first` answers whether to go on, and whether a signal stops this process.
std::atomic<int> gate{-1};
std::atomic<bool> traps{false};
GetThread get_thread = nullptr;
DumpFrames dump_frames = nullptr;
struct sigaction previous;

bool allow(uintptr_t start, uintptr_t size, int mode) {
    const int allowed = mode == OPEN ? PROT_READ | PROT_WRITE : mode == READ_ONLY ? PROT_READ : PROT_NONE;
    return size == 0 || mprotect(reinterpret_cast<void*>(start), size, allowed) == 0;
}

bool protect(const Region& region, int mode) { return allow(region.start, region.pages(), mode); }

char* put(char* at, uint64_t number) {
    char digits[20];
    int count = 0;
    do {
        digits[count++] = static_cast<char>('0' + number % 10);
        number /= 10;
    } while (number != 0);
    while (count > 0) *at++ = digits[--count];
    *at++ = ' ';
    return at;
}

void tell(uintptr_t address, bool writes, int mode) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    char line[96] = "@ ";
    char* end = put(line + 2, static_cast<uint64_t>(now.tv_sec) * 1000000000 + now.tv_nsec);
    end = put(end, address);
    end = put(end, writes ? 1 : 0);
    end = put(end, static_cast<uint64_t>(mode));
    end[-1] = '\n';
    const int file = output.load();
    if (write(file, line, end - line) < 0) return;
    void* const thread = get_thread == nullptr ? nullptr : get_thread();
    if (thread != nullptr && dump_frames != nullptr) dump_frames(file, thread);
    void* addresses[FRAMES];
    backtrace_symbols_fd(addresses, backtrace(addresses, FRAMES), file);
    if (traps.load() && softnpu_watch_ask() != 0) raise(SIGTRAP);
}

// The region in whose pages, or in whose guard, the address lies.
Region* region_at(uintptr_t address) {
    const size_t count = used.load();
    for (size_t slot = 0; slot < count; slot++) {
        Region& region = regions[slot];
        const uintptr_t start = region.start.load();
        if (start != 0 && address >= start && address - start < region.pages() + region.guard) return &region;
    }
    return nullptr;
}

bool open_region(uintptr_t address, bool writes) {
    Region* const region = region_at(address);
    if (region == nullptr || region->mode == GONE) return false;
    const uintptr_t end = region->start + region->pages();
    // two threads may fault at once: the second finds it open, and tries again
    if (address >= end) {
        if (!region->passed.exchange(true)) tell(address, writes, BEYOND);
        return allow(end, region->guard, OPEN);
    }
    const int mode = region->mode.exchange(OPEN);
    if (mode != OPEN && !(mode == UNWRITTEN && writes)) tell(address, writes, mode);
    return protect(*region, OPEN);
}

void forget(Region& region) {
    region.start.store(0);
    region.taken.store(false);
}

// Opens and forgets all regions in a range: it is used anew.
void forget_range(uintptr_t start, uintptr_t size) {
    const size_t count = used.load();
    for (size_t slot = 0; slot < count; slot++) {
        Region& region = regions[slot];
        const uintptr_t at = region.start.load();
        if (at == 0 || at >= start + size || start >= at + region.pages() + region.guard) continue;
        if (region.mode != GONE) allow(at, region.pages() + region.guard, OPEN);
        forget(region);
    }
}

bool is_write(const void* context) {
#if defined(__x86_64__)
    return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
    (void)context;
    return false;
#endif
}

void on_fault(int number, siginfo_t* info, void* context) {
    const int saved = errno;
    const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    const bool opened = info->si_code == SEGV_ACCERR && open_region(address, is_write(context));
    if (info->si_code == SEGV_MAPERR) {
        const Region* const region = region_at(address);
        if (region != nullptr && region->mode == GONE) tell(address, is_write(context), FREED);
    }
    errno = saved;
    if (!opened) pass_on(previous, number, info, context);
}

}  // namespace

extern "C" {

// Handles SIGSEGV and writes to `file`; the two functions are Python's, or null. Returns 0 or an errno.
int softnpu_watch_install(int file, GetThread thread, DumpFrames frames) {
    get_thread = thread;
    dump_frames = frames;
    void* warm[2];
    backtrace(warm, 2);  // loads the unwinder, which a handler must not
    if (output.exchange(file) >= 0) return 0;
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGSEGV, &action, &previous) == 0 ? 0 : errno;
}

// Asks at this socket from now on. Returns 't' if a signal stops this process, 'p' if pdb does, 0 if nobody
// listens there.
int softnpu_watch_gate(const char* path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    char mode = 0;
    int made = -1;
    if (strlen(path) < sizeof address.sun_path) {
        strcpy(address.sun_path, path);
        made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (made >= 0) setsockopt(made, SOL_SOCKET, SO_RCVTIMEO, &ANSWER, sizeof ANSWER);
    }
    if (made >= 0 && (connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
                      recv(made, &mode, 1, 0) != 1)) {
        close(made);
        made = -1;
    }
    const int before = gate.exchange(made);
    if (before >= 0) close(before);
    traps.store(mode == 't');
    return made < 0 ? 0 : mode;
}

// Whether this process is to stop here. Whoever has ended, or does not answer in time, lets it go on for
// good.
int softnpu_watch_ask() {
    const int file = gate.load();
    char answer = 'g';
    if (file < 0 || send(file, &answer, 1, MSG_NOSIGNAL) != 1) return 0;
    ssize_t size;
    do {
        size = recv(file, &answer, 1, 0);
    } while (size < 0 && errno == EINTR);
    if (size != 1) gate.store(-1);  // an answer that is late is not one to the next question
    return size == 1 && answer == 's';
}

// Watches `size` bytes, which begin and end with pages of their own, and closes the `guard` bytes behind
// these pages; returns a number, -1 if the table is full.
long softnpu_watch_add(uintptr_t start, size_t size, size_t guard) {
    forget_range(start, size + guard);
    for (size_t slot = 0; slot < SLOTS; slot++) {
        if (regions[slot].taken.exchange(true)) continue;
        regions[slot].mode.store(OPEN);
        regions[slot].guard.store(guard);
        regions[slot].passed.store(false);
        regions[slot].size.store(size);
        regions[slot].start.store(start);
        size_t count = used.load();
        while (count <= slot && !used.compare_exchange_weak(count, slot + 1)) {
        }
        allow(start + regions[slot].pages(), guard, CLOSED);
        return static_cast<long>(slot);
    }
    return -1;
}

// Changes what is denied.
void softnpu_watch_set(long slot, int mode) {
    if (regions[slot].mode.exchange(mode) != mode) protect(regions[slot], mode);
}

// Forgets a region; `mapped`: its pages are still there, and are opened.
void softnpu_watch_remove(long slot, int mapped) {
    Region& region = regions[slot];
    if (mapped != 0) allow(region.start, region.pages() + region.guard, OPEN);
    forget(region);
}

// The pages of a range are unmapped: what was freed there is told once more, before the program crashes.
void softnpu_watch_unmapped(uintptr_t start, size_t size) {
    const size_t count = used.load();
    for (size_t slot = 0; slot < count; slot++) {
        Region& region = regions[slot];
        const uintptr_t at = region.start.load();
        if (at < start || at - start >= size) continue;
        if (region.mode.exchange(GONE) != FREED) forget(region);
    }
}
}
