#include "workers.hpp"

#include <dlfcn.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace softnpu::engine::workers {

namespace {

constexpr int AFTER = 64;  // short inferences
constexpr uint64_t SHORT_NS = 60000;
// Each loop over the parts leaves 128 bytes in the mailbox of every worker, until that takes part in one of
// the same image again: so many inferences without them, and what one with them takes off.
constexpr int MAIL = 512, LEAST_MAIL = 64, EMPTIED = 16;
constexpr int INTERFACE = 12;  // of oneTBB, in which what follows is the same
constexpr int ALLOWED = 0;     // global_control::max_allowed_parallelism

// Binary interface of oneTBB: tbb::detail::d1::task, and global_control of one allowed thread.
struct alignas(64) Task {
    uint64_t traits = 0;
    virtual ~Task() = default;
    virtual Task* execute(void*) = 0;
    virtual Task* cancel(void*) = 0;
    uint64_t reserved[6]{};
};
static_assert(sizeof(Task) == 64);

struct Control {
    size_t value = 1;
    intptr_t reserved = 0;
    int parameter = ALLOWED;
};

// Keeps a worker until `released`.
struct Hold final : Task {
    std::atomic<bool> released{true}, ended{true};
    Task* execute(void*) override {
        while (!released.load()) sched_yield();
        return cancel(nullptr);
    }
    Task* cancel(void*) override {
        ended.store(true);
        return nullptr;
    }
};

// How long the last inferences of an image took on average, with the workers and without.
struct Image {
    int mail = 0;
    uint64_t helped_ns = 0, alone_ns = 0;

    bool is_short() const { return helped_ns < SHORT_NS && alone_ns <= helped_ns + helped_ns / 4; }

    void count(bool is_alone, uint64_t ns) {
        uint64_t& mean = is_alone ? alone_ns : helped_ns;
        // bounded: one that has lost its core for a while says nothing
        mean = mean == 0 ? ns : mean - mean / 8 + std::min(ns, 2 * mean) / 8;
        if (!is_alone) alone_ns -= alone_ns / 64;  // so it is tried again after some
    }
};

class Workers {
public:
    Workers() {
        void* tbb = dlopen("libtbb.so.12", RTLD_NOW | RTLD_NOLOAD);  // OpenVINO's
        if (!tbb) return;
        int (*version)() = nullptr;
        size_t (*allowed)(int) = nullptr;
        const bool found =
            find(tbb, "TBB_runtime_interface_version", version) &&
            find(tbb, "_ZN3tbb6detail2r127global_control_active_valueEi", allowed) &&
            find(tbb, "_ZN3tbb6detail2r16createERNS0_2d114global_controlE", create_) &&
            find(tbb, "_ZN3tbb6detail2r17destroyERNS0_2d114global_controlE", destroy_) &&
            find(tbb, "_ZN3tbb6detail2r17enqueueERNS0_2d14taskEPNS2_15task_arena_baseE", enqueue_);
        if (!found || version() / 1000 != INTERFACE) return;
        const int others = static_cast<int>(allowed(ALLOWED)) - 1;
        if (others > 0) most_ = std::max(MAIL / others, LEAST_MAIL);
    }

    void begins(const void* image) {
        if (asleep_ && images_[image].mail >= most_) wake();
    }

    void ran(const void* image, uint64_t ns) {
        if (!most_) return;
        Image& found = images_[image];
        found.mail = asleep_ ? found.mail + 1 : std::max(found.mail - EMPTIED, 0);
        found.count(asleep_, ns);
        if (!found.is_short()) return wake();
        if (asleep_ || ++count_ < AFTER) return;
        const std::lock_guard<std::mutex> lock(mutex_);
        count_ = 0;
        if (taken_ == 0 && hold_.ended.load()) put_to_sleep();
    }

    void wake() {
        count_ = 0;
        if (!asleep_) return;
        const std::lock_guard<std::mutex> lock(mutex_);
        wake_locked();
    }

    void take() {
        const std::lock_guard<std::mutex> lock(mutex_);
        ++taken_;
        wake_locked();
    }

    void give() {
        const std::lock_guard<std::mutex> lock(mutex_);
        --taken_;
    }

private:
    template <typename Function>
    static bool find(void* library, const char* name, Function*& function) {
        function = reinterpret_cast<Function*>(dlsym(library, name));
        return function != nullptr;
    }

    // oneTBB 2021.11 to 2021.13 lets a worker that it no longer needs spin, if no thread is allowed beside
    // the caller (its issue 1417); not so while something is enqueued, whose end puts the worker to sleep.
    void put_to_sleep() {
        hold_.released.store(false);
        hold_.ended.store(false);
        try {
            enqueue_(hold_, nullptr);
        } catch (...) {  // no memory, or no thread
            hold_.ended.store(true);
            return;
        }
        try {
            create_(control_);
            asleep_ = true;
        } catch (...) {  // they stay awake
        }
        hold_.released.store(true);
    }

    void wake_locked() {
        if (!asleep_) return;
        asleep_ = false;
        try {
            destroy_(control_);
        } catch (...) {  // no thread: OpenVINO computes without
        }
    }

    std::mutex mutex_;
    int count_ = 0;  // short inferences in a row, of the engine's thread
    int most_ = 0;   // of an image without the workers; 0: they are never put to sleep
    std::unordered_map<const void*, Image> images_;  // for the engine's thread
    int taken_ = 0;
    std::atomic<bool> asleep_{false};
    Hold hold_;
    Control control_;
    void (*create_)(Control&) = nullptr;
    void (*destroy_)(Control&) = nullptr;
    void (*enqueue_)(Task&, void*) = nullptr;
};

// never destroyed: a worker may still have the task when the process ends
Workers& all() {
    static Workers* const workers = new Workers;
    return *workers;
}

}  // namespace

void begins(const void* image) { all().begins(image); }
void ran(const void* image, uint64_t ns) { all().ran(image, ns); }
void wake() { all().wake(); }

}  // namespace softnpu::engine::workers

void softnpu_workers_take() { softnpu::engine::workers::all().take(); }
void softnpu_workers_give() { softnpu::engine::workers::all().give(); }
void softnpu_workers_begins(const void* image) { softnpu::engine::workers::all().begins(image); }
void softnpu_workers_ran(const void* image, uint64_t ns) { softnpu::engine::workers::all().ran(image, ns); }
void softnpu_workers_wake() { softnpu::engine::workers::all().wake(); }
