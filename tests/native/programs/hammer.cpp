// Many threads make, use and destroy objects all the time, also while work is in flight; every copy is
// checked. Arguments: threads, rounds of each.
#include <thread>
#include <vector>

#include "npu.hpp"

namespace {

constexpr size_t SIZE = 4096;

void copy_once(const Npu& npu, ze_command_queue_handle_t queue, uint8_t value) {
    uint8_t* const source = npu.host(SIZE);
    uint8_t* const target = npu.host(SIZE);
    std::memset(source, value, SIZE);
    std::memset(target, 0, SIZE);
    auto list = npu.list();
    npu.check(zeCommandListAppendMemoryCopy(list, target, source, SIZE, nullptr, 0, nullptr), "copy");
    npu.check(zeCommandListClose(list), "close");
    auto fence = npu.fence(queue);
    npu.check(zeCommandQueueExecuteCommandLists(queue, 1, &list, fence), "execute");
    npu.check(zeFenceHostSynchronize(fence, UINT64_MAX), "synchronize");
    for (size_t at = 0; at < SIZE; ++at) {
        if (target[at] != value) {
            std::fprintf(stderr, "byte %zu is %u instead of %u\n", at, target[at], value);
            std::abort();
        }
    }
    npu.check(zeFenceDestroy(fence), "destroy fence");
    npu.check(zeCommandListDestroy(list), "destroy list");
    npu.check(zeMemFree(npu.context, source), "free");
    npu.check(zeMemFree(npu.context, target), "free");
}

// Everything is destroyed while the device may still use it.
void let_go_in_flight(const Npu& npu) {
    auto queue = npu.queue();
    uint8_t* const memory = npu.host(SIZE);
    auto list = npu.list();
    const uint8_t pattern = 7;
    npu.check(zeCommandListAppendMemoryFill(list, memory, &pattern, 1, SIZE, nullptr, 0, nullptr), "fill");
    npu.check(zeCommandListClose(list), "close");
    auto fence = npu.fence(queue);
    npu.check(zeCommandQueueExecuteCommandLists(queue, 1, &list, fence), "execute");
    npu.check(zeMemFree(npu.context, memory), "free");
    npu.check(zeFenceDestroy(fence), "destroy fence");
    npu.check(zeCommandListDestroy(list), "destroy list");
    npu.check(zeCommandQueueDestroy(queue), "destroy queue");
}

// An event of a pool that all threads use, signalled and waited for.
void event_once(const Npu& npu, ze_event_pool_handle_t pool, uint32_t index) {
    ze_event_desc_t desc{};
    desc.stype = 0x11;
    desc.index = index;
    ze_event_handle_t event;
    npu.check(zeEventCreate(pool, &desc, &event), "event");
    npu.check(zeEventHostSignal(event), "signal");
    npu.check(zeEventHostSynchronize(event, UINT64_MAX), "synchronize event");
    npu.check(zeEventDestroy(event), "destroy event");
}

// Wrong and stale handles from many threads at once: an error, never a crash.
void misuse(const Npu& npu, ze_fence_handle_t stale) {
    if (zeFenceQueryStatus(stale) != ZE_RESULT_ERROR_INVALID_NULL_HANDLE) std::abort();
    if (zeFenceQueryStatus(reinterpret_cast<ze_fence_handle_t>(npu.context)) !=
        ZE_RESULT_ERROR_INVALID_ARGUMENT)
        std::abort();
    if (zeMemFree(npu.context, &stale) != ZE_RESULT_ERROR_INVALID_ARGUMENT) std::abort();
}

}  // namespace

int main(int count, char** words) {
    const int threads = count > 1 ? std::atoi(words[1]) : 8;
    const int rounds = count > 2 ? std::atoi(words[2]) : 100;
    const Npu npu;
    auto shared = npu.queue();
    auto stale = npu.fence(shared);
    npu.check(zeFenceDestroy(stale), "destroy fence");
    ze_event_pool_desc_t pool_desc{};
    pool_desc.stype = 0x10;
    pool_desc.count = static_cast<uint32_t>(threads);
    ze_event_pool_handle_t pool;
    npu.check(zeEventPoolCreate(npu.context, &pool_desc, 0, nullptr, &pool), "event pool");
    std::vector<std::thread> workers;
    for (int worker = 0; worker < threads; ++worker) {
        workers.emplace_back([&, worker] {
            for (int round = 0; round < rounds; ++round) {
                copy_once(npu, shared, static_cast<uint8_t>(1 + (worker * 31 + round) % 255));
                if (round % 4 == 0) let_go_in_flight(npu);
                event_once(npu, pool, static_cast<uint32_t>(worker));
                misuse(npu, stale);
            }
        });
    }
    for (auto& worker : workers) worker.join();
    npu.check(zeEventPoolDestroy(pool), "destroy event pool");
    npu.check(zeCommandQueueDestroy(shared), "destroy queue");
    npu.check(zeContextDestroy(npu.context), "destroy context");
    std::puts("done");
}
