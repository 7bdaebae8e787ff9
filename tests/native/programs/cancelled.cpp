// A thread is cancelled during a call while others use the same session. The argument selects the
// call: `queue` while the daemon does not answer (stdout says when to stop it and when to continue it),
// `fence` while it waits for work that does not end by itself.
#include <pthread.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "npu.hpp"

namespace {

struct Call {
    const Npu& npu;
    ze_fence_handle_t fence;
};

void* make_queue(void* given) {
    static_cast<Call*>(given)->npu.queue();
    return nullptr;
}

void* wait_for_fence(void* given) {
    zeFenceHostSynchronize(static_cast<Call*>(given)->fence, UINT64_MAX);
    return nullptr;
}

// The caller of this program does as told, and answers with a line.
void ask(const char* what) {
    std::printf("%s\n", what);
    std::fflush(stdout);
    char answer[16];
    if (std::fgets(answer, sizeof answer, stdin) == nullptr) std::abort();
}

pid_t started = 0;
void* (*call)(void*) = nullptr;

void* run(void* given) {
    __atomic_store_n(&started, gettid(), __ATOMIC_RELEASE);
    return call(given);
}

// Cancels a thread during a call.
void cancel_in(void* (*what)(void*), Call given) {
    call = what;
    pthread_t thread;
    if (pthread_create(&thread, nullptr, run, &given) != 0) std::abort();
    while (__atomic_load_n(&started, __ATOMIC_ACQUIRE) == 0) usleep(1000);
    wait_asleep(started);
    pthread_cancel(thread);
    void* result = nullptr;
    pthread_join(thread, &result);
    std::printf("%s\n", result == PTHREAD_CANCELED ? "cancelled" : "returned");
}

}  // namespace

int main(int, char** argv) {
    const Npu npu;
    const bool is_queue = std::string(argv[1]) == "queue";
    if (is_queue) {
        // the first queue of a context: its ring is in a segment that only this answer describes
        npu.host(64);
        ask("stop");
        cancel_in(make_queue, {npu, nullptr});
        ask("go on");
    }
    const auto queue = npu.queue();
    const auto fence = npu.fence(queue);
    const auto gate = npu.gated(queue, fence);
    if (!is_queue) cancel_in(wait_for_fence, {npu, fence});
    npu.check(zeEventHostSignal(gate), "signal");
    npu.check(zeFenceHostSynchronize(fence, UINT64_MAX), "fence");
    npu.check(zeCommandQueueDestroy(queue), "destroy");
    std::printf("done\n");
    npu.check(zeContextDestroy(npu.context), "context");
}
