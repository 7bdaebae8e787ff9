// Microseconds for an empty command list, submitted and waited for: median and 90th percentile.
// Argument: how many.
#include <algorithm>
#include <chrono>
#include <vector>

#include "npu.hpp"

int main(int count, char** words) {
    const int rounds = count > 1 ? std::atoi(words[1]) : 2000;
    const Npu npu;
    auto queue = npu.queue();
    auto list = npu.list();
    auto fence = npu.fence(queue);
    npu.check(zeCommandListAppendBarrier(list, nullptr, 0, nullptr), "zeCommandListAppendBarrier");
    npu.check(zeCommandListClose(list), "zeCommandListClose");
    std::vector<double> times;
    for (int round = 0; round < rounds; ++round) {
        const auto start = std::chrono::steady_clock::now();
        npu.check(zeCommandQueueExecuteCommandLists(queue, 1, &list, fence),
                  "zeCommandQueueExecuteCommandLists");
        npu.check(zeFenceHostSynchronize(fence, UINT64_MAX), "zeFenceHostSynchronize");
        times.push_back(
            std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
        npu.check(zeFenceReset(fence), "zeFenceReset");
    }
    std::sort(times.begin(), times.end());
    std::printf("%.2f %.2f\n", times[times.size() / 2], times[times.size() * 9 / 10]);
    npu.check(zeFenceDestroy(fence), "zeFenceDestroy");
    npu.check(zeCommandListDestroy(list), "zeCommandListDestroy");
    npu.check(zeCommandQueueDestroy(queue), "zeCommandQueueDestroy");
    npu.check(zeContextDestroy(npu.context), "zeContextDestroy");
}
