#include "workers.hpp"

#include <dlfcn.h>
#include <sched.h>
#include <time.h>

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
// Whether an image is slower without workers: by most of so many inferences. It has them for the next `WITH`.
constexpr int SEEN = 16, WITH = 4096;
// Each loop over the parts leaves 128 bytes in the mailbox of every worker, until that takes part in one of
// the same image again: so many inferences without them of all images, at least so many of one.
constexpr int MAIL = 8192, MAIL_OF_ONE = 512, LEAST_MAIL = 64;
// CPU time, during inferences, in which a worker reads its mail of an image: for 1 ms of it, it may still
// look for other work. A reading ends after `MOST_READ` inferences, as there may be no worker.
constexpr int64_t READ_NS = 3000000;
constexpr int MOST_READ = 16384;
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

// The inferences of an image: mean time of the last ones with the workers, and how many were slower without.
struct Image {
    int mail = 0;
    uint64_t helped_ns = 0;
    int alone = 0, slower = 0, with = 0, reading = 0;

    bool is_short() const { return helped_ns != 0 && helped_ns < SHORT_NS && with == 0; }

    void count(bool is_alone, uint64_t ns, uint64_t others) {
        // one that has lost its core for a while says nothing
        if (!is_alone) {
            helped_ns = helped_ns == 0 ? ns : helped_ns - helped_ns / 8 + std::min(ns, 2 * helped_ns) / 8;
            with -= with > 0;
            return;
        }
        // a core of theirs is one for the client
        slower += ns > helped_ns + std::max(helped_ns / others, helped_ns / 8);
        if (++alone < SEEN) return;
        if (slower > SEEN / 2) with = WITH;
        alone = slower = 0;
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
        others_ = static_cast<int>(allowed(ALLOWED)) - 1;
    }

    void begins(const void* image) {
        if (asleep_ && has_mail(image)) {
            wake();
            ++reading_;
            left_ns_ = 0;
            left_ = MOST_READ;
        }
        if (left_) begun_ns_ = others_ns();
    }

    void ran(const void* image, uint64_t ns) {
        if (others_ <= 0) return;
        Image& found = images_[image];
        found.count(asleep_, ns, others_);
        if (!found.is_short()) return wake();
        if (asleep_) {
            mailed_ += found.mail++ == 0;
            return;
        }
        const bool has_read = read(found);
        if (++count_ < AFTER || !has_read) return;
        const std::lock_guard<std::mutex> lock(mutex_);
        count_ = 0;
        if (taken_.load() == 0 && hold_.ended.load()) put_to_sleep();
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

    bool has_mail(const void* image) {
        const int most = std::max(MAIL / std::max(mailed_, 1), MAIL_OF_ONE) / others_;
        return images_[image].mail >= std::max(most, LEAST_MAIL);
    }

    // Count an inference with the workers, which may have been woken for mail; return whether that is read.
    // Beside busy processes they may get no core for long.
    bool read(Image& image) {
        if (!left_) return true;
        if (image.reading != reading_) {
            image.reading = reading_;
            mailed_ -= image.mail > 0;
            image.mail = 0;
            left_ns_ += READ_NS * others_;
        }
        if (taken_.load() == 0) left_ns_ -= static_cast<int64_t>(others_ns() - begun_ns_);
        left_ = left_ns_ > 0 ? left_ - 1 : 0;
        return !left_;
    }

    // CPU time of all other threads.
    static uint64_t others_ns() {
        const uint64_t own = cpu_ns(CLOCK_THREAD_CPUTIME_ID);  // first: it is never more than all
        return cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - own;
    }

    static uint64_t cpu_ns(clockid_t clock) {
        timespec time{};
        clock_gettime(clock, &time);
        return static_cast<uint64_t>(time.tv_sec) * 1000000000 + static_cast<uint64_t>(time.tv_nsec);
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
    // For the engine's thread: short inferences in a row; images with mail; how often the workers were woken
    // for it, and the inferences and CPU time of others that are left until it is read.
    int count_ = 0, mailed_ = 0, reading_ = 0, left_ = 0;
    int64_t left_ns_ = 0;
    uint64_t begun_ns_ = 0;
    std::unordered_map<const void*, Image> images_;
    int others_ = 0;  // 0: they are never put to sleep
    std::atomic<int> taken_{0};
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
