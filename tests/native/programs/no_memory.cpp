// Every allocation in a call fails once. The call reports it and leaves the session usable, or the
// session is lost with a reason; nothing hangs. Prints how many calls failed, and what remains at the end.
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "npu.hpp"

namespace {

thread_local long left = -1;  // allocations until one fails; below 0: none does

}  // namespace

extern "C" void* __libc_malloc(size_t size);

// in place of the C library's: the driver has its own operator new
extern "C" void* malloc(size_t size) {
    if (left >= 0 && left-- == 0) {
        errno = ENOMEM;
        return nullptr;
    }
    return __libc_malloc(size);
}

namespace {

// Makes one call without memory; returns whether any allocation failed in it.
template <class Call>
bool starve(long after, ze_result_t& result, Call&& call) {
    left = after;
    result = call();
    const bool failed = left < 0;
    left = -1;
    return failed;
}

// Whether the session was lost because an answer could not be received; queried with memory for the reason.
bool hung(const Npu& npu) {
    ze_host_mem_alloc_desc_t desc{0x16, nullptr, 0};
    void* made = nullptr;
    const char* text = "";
    if (zeMemAllocHost(npu.context, &desc, 64, 64, &made) != ZE_RESULT_SUCCESS) {
        zeDriverGetLastErrorDescription(npu.driver, &text);
    }
    return std::string(text).find("no answer within") != std::string::npos;
}

struct Work {
    Npu npu;
    ze_command_queue_handle_t queue = npu.queue();
    ze_command_list_handle_t list = npu.list();
    ze_fence_handle_t fence = npu.fence(queue);
    uint8_t* memory = npu.host(4096);

    Work() {
        std::memset(memory, 0, 4096);
        const uint8_t one = 1;
        npu.check(zeCommandListAppendMemoryFill(list, memory, &one, 1, 4096, nullptr, 0, nullptr), "fill");
        npu.check(zeCommandListClose(list), "close");
    }
};

}  // namespace

int main() {
    Work* work = new Work;
    int failures = 0, losses = 0;
    const auto judge = [&](ze_result_t result) {
        if (result == ZE_RESULT_SUCCESS) return;
        ++failures;
        if (result == ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY) return;
        if (result != ZE_RESULT_ERROR_DEVICE_LOST || hung(work->npu))
            work->npu.check(result, "without memory");
        ++losses;
        work = new Work;  // its own session; the old one is lost
    };
    ze_result_t result;
    for (long after = 0;; ++after) {
        ze_command_queue_desc_t desc{0xe, nullptr, 0, 0, 0, ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS, 0};
        ze_command_queue_handle_t made = nullptr;
        const auto create = [&] {
            return zeCommandQueueCreate(work->npu.context, work->npu.device, &desc, &made);
        };
        if (!starve(after, result, create)) break;
        judge(result);
        if (result == ZE_RESULT_SUCCESS) work->npu.check(zeCommandQueueDestroy(made), "destroy");
    }
    for (long after = 0;; ++after) {
        const auto execute = [&] {
            return zeCommandQueueExecuteCommandLists(work->queue, 1, &work->list, work->fence);
        };
        const bool failed = starve(after, result, execute);
        judge(result);
        if (result == ZE_RESULT_SUCCESS) {
            work->npu.check(zeFenceHostSynchronize(work->fence, UINT64_MAX), "fence");
            if (work->memory[0] != 1) work->npu.fail("fill", result, __FILE__, __LINE__);
            work->memory[0] = 0;
        }
        work->npu.check(zeFenceReset(work->fence), "reset");
        if (!failed) break;
    }
    work->npu.check(zeCommandQueueSynchronize(work->queue, UINT64_MAX), "queue");
    std::printf("%s\n", failures > 20 ? "many calls failed" : "hardly a call failed");
    std::fprintf(stderr, "%d failures, %d sessions lost\n", failures, losses);
}
