// Threads that wait for the device, while something else ends their waits:
// `daemon`, which the caller of this program kills when told to, or `queue`,
// destroyed by another thread. A sleep on several words never ends by itself
// here; with the second argument `old` the kernel knows no such sleep.
// `rearmed`: before the thread sleeps its submission ends, and another one with
// its fence; tells how many of its sleeps were in vain.
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "npu.hpp"

namespace {

constexpr long FUTEX_WAITV = 449;
bool is_old = false;
std::atomic<int> sleepers{0};
thread_local bool is_stopped = false;  // the next time that it is about to sleep
thread_local int in_vain = 0;
std::atomic<bool> has_stopped{false}, continues{false};

class Waiter {
public:
    template <class Call>
    explicit Waiter(Call call)
        : thread_([this, call] {
              id_ = gettid();
              result_ = call();
          }) {}

    void wait_until_asleep() {
        while (id_ == 0) usleep(1000);
        wait_asleep(id_);
    }
    unsigned result() {
        thread_.join();
        return static_cast<unsigned>(result_);
    }

private:
    std::atomic<pid_t> id_{0};
    ze_result_t result_{};
    std::thread thread_;
};

}  // namespace

// In the place of the C library's, also for the driver.
extern "C" long syscall(long number, ...) noexcept {
    static const auto real = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
    va_list list;
    va_start(list, number);
    long arguments[6];
    for (long& argument : arguments) argument = va_arg(list, long);
    va_end(list);
    if (number == FUTEX_WAITV && is_old) {
        errno = ENOSYS;
        return -1;
    }
    if (number == FUTEX_WAITV) {
        ++sleepers;
        arguments[3] = 0;
    }
    const long result =
        real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
    const bool is_sleep = number == FUTEX_WAITV || (number == SYS_futex && arguments[1] == FUTEX_WAIT);
    if (is_sleep && result < 0 && errno == ETIMEDOUT) ++in_vain;
    return result;
}

// The driver calls it between the look at what it waits for and the sleep.
extern "C" void pthread_testcancel() {
    static const auto real = reinterpret_cast<void (*)()>(dlsym(RTLD_NEXT, "pthread_testcancel"));
    if (is_stopped) {
        is_stopped = false;
        has_stopped = true;
        while (!continues) usleep(1000);
    }
    real();
}

int main(int, char** argv) {
    const std::string end = argv[1];
    is_old = std::string(argv[2]) == "old";
    const Npu npu;
    const auto queue = npu.queue();
    const auto fence = npu.fence(queue);
    const auto gate = npu.gated(queue, fence);
    const auto on_fence = [&] { return zeFenceHostSynchronize(fence, UINT64_MAX); };
    if (end == "rearmed") {
        int slept = 0;
        std::thread waiter([&] {
            is_stopped = true;
            on_fence();
            slept = in_vain;
        });
        while (!has_stopped) usleep(1000);
        npu.check(zeEventHostSignal(gate), "signal");
        npu.check(zeCommandQueueSynchronize(queue, UINT64_MAX), "synchronize");
        npu.check(zeFenceReset(fence), "reset");
        auto empty = npu.list();
        npu.check(zeCommandListClose(empty), "close");
        npu.check(zeCommandQueueExecuteCommandLists(queue, 1, &empty, fence), "execute");
        npu.check(zeCommandQueueSynchronize(queue, UINT64_MAX), "synchronize");
        continues = true;
        waiter.join();
        std::printf("%d\n", slept);
        return 0;
    }
    const auto on_queue = [&] { return zeCommandQueueSynchronize(queue, UINT64_MAX); };
    Waiter waiters[]{Waiter(on_fence), Waiter(on_fence), Waiter(on_queue), Waiter(on_queue)};
    while (!is_old && sleepers < 4) usleep(1000);
    for (Waiter& waiter : waiters) waiter.wait_until_asleep();
    if (end == "queue") {
        npu.check(zeCommandQueueDestroy(queue), "destroy");
    } else {
        std::printf("kill\n");
        std::fflush(stdout);
    }
    for (Waiter& waiter : waiters) std::printf("%#x\n", waiter.result());
}
