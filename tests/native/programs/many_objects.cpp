// The cost of creating many objects, and of destroying them with their parents: CPU time in ms.
// Argument: their number.
#include <ctime>

#include "npu.hpp"

static double cpu_ms() {
    timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

int main(int, char** arguments) {
    const Npu npu;
    const int count = std::atoi(arguments[1]);
    const auto queue = npu.queue();
    const double start = cpu_ms();
    for (int index = 0; index < count; ++index) npu.fence(queue);
    const double made = cpu_ms();
    npu.check(zeCommandQueueDestroy(queue), "zeCommandQueueDestroy");
    std::printf("%.3f %.3f\n", made - start, cpu_ms() - made);
}
