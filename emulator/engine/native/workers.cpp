#include "workers.hpp"

#include <dlfcn.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <unordered_map>

namespace softnpu::engine::workers {

namespace {

constexpr int AFTER = 64;  // short inferences
// Each loop over the parts leaves 128 bytes in the mailbox of every worker, until that takes part in one of
// the same image again: so many inferences without them, and what one with them takes off.
constexpr int MAIL = 2048, LEAST_MAIL = 256, EMPTIED = 64;
constexpr int MAJOR = 12000;  // of oneTBB's interface, in which what follows is the same
constexpr int ALLOWED = 0;    // global_control::max_allowed_parallelism

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
        if (!found || version() / 1000 != MAJOR / 1000) return;
        const int others = static_cast<int>(allowed(ALLOWED)) - 1;
        if (others > 0) most_ = MAIL / others > LEAST_MAIL ? MAIL / others : LEAST_MAIL;
    }

    void begins(const void* image) {
        if (asleep_ && mail_[image] >= most_) wake();
    }

    void ran(const void* image, bool is_short) {
        if (!most_) return;
        if (asleep_) {
            ++mail_[image];
        } else if (const auto found = mail_.find(image); found != mail_.end()) {
            found->second = std::max(found->second - EMPTIED, 0);
        }
        if (!is_short) return wake();
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
        } catch (const std::bad_alloc&) {
            hold_.ended.store(true);
            return;
        }
        try {
            create_(control_);
            asleep_ = true;
        } catch (const std::bad_alloc&) {
            asleep_ = false;
        }
        hold_.released.store(true);
    }

    void wake_locked() {
        if (asleep_) destroy_(control_);
        asleep_ = false;
    }

    std::mutex mutex_;
    int count_ = 0;  // short inferences in a row, of the engine's thread
    int most_ = 0;   // of an image without the workers; 0: they are never put to sleep
    std::unordered_map<const void*, int> mail_;
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
void ran(const void* image, bool is_short) { all().ran(image, is_short); }
void wake() { all().wake(); }

}  // namespace softnpu::engine::workers

void softnpu_workers_take() { softnpu::engine::workers::all().take(); }
void softnpu_workers_give() { softnpu::engine::workers::all().give(); }
void softnpu_workers_begins(const void* image) { softnpu::engine::workers::all().begins(image); }
void softnpu_workers_ran(const void* image, int is_short) {
    softnpu::engine::workers::all().ran(image, is_short != 0);
}
void softnpu_workers_wake() { softnpu::engine::workers::all().wake(); }
