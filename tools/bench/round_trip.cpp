// An empty command list, submitted and waited for repeatedly: the program of `softnpu bench native`.
//
// Arguments: one or more numbers of round trips. Without arguments the numbers are read from standard input,
// one at a time, and the program sleeps in between. Each is answered with a line: median and 90th percentile,
// in microseconds. It links the loader under test and declares the part of Level Zero that it needs.
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

extern "C" {
struct Flags {
    uint32_t stype;
    const void* pNext;
    uint32_t flags;
};
struct ListDesc {
    uint32_t stype;
    const void* pNext;
    uint32_t commandQueueGroupOrdinal, flags;
};
struct QueueDesc {
    uint32_t stype;
    const void* pNext;
    uint32_t ordinal, index, flags, mode, priority;
};
uint32_t zeInitDrivers(uint32_t* count, void** drivers, Flags* types);
uint32_t zeDriverGetLastErrorDescription(void* driver, const char** text);
uint32_t zeDeviceGet(void* driver, uint32_t* count, void** devices);
uint32_t zeContextCreate(void* driver, const Flags* desc, void** context);
uint32_t zeContextDestroy(void* context);
uint32_t zeCommandQueueCreate(void* context, void* device, const QueueDesc* desc, void** queue);
uint32_t zeCommandQueueExecuteCommandLists(void* queue, uint32_t count, void** lists, void* fence);
uint32_t zeCommandQueueDestroy(void* queue);
uint32_t zeCommandListCreate(void* context, void* device, const ListDesc* desc, void** list);
uint32_t zeCommandListAppendBarrier(void* list, void* signal, uint32_t count, void** waits);
uint32_t zeCommandListClose(void* list);
uint32_t zeCommandListDestroy(void* list);
uint32_t zeFenceCreate(void* queue, const Flags* desc, void** fence);
uint32_t zeFenceHostSynchronize(void* fence, uint64_t timeout);
uint32_t zeFenceReset(void* fence);
uint32_t zeFenceDestroy(void* fence);
}

namespace {

constexpr uint32_t NPU = 2, ASYNCHRONOUS = 2;
constexpr uint64_t DEADLINE_NS = 10'000'000'000;

void* driver = nullptr;

void check(uint32_t result, const char* call) {
    if (result == 0) return;
    const char* reason = "";
    if (driver != nullptr) zeDriverGetLastErrorDescription(driver, &reason);
    std::fprintf(stderr, "%s: %#x %s\n", call, static_cast<unsigned>(result), reason);
    std::exit(1);
}

#define CHECK(function, ...) check(function(__VA_ARGS__), #function)

class EmptySubmission {
public:
    EmptySubmission() {
        Flags types{0x20021, nullptr, NPU};
        uint32_t count = 1;
        CHECK(zeInitDrivers, &count, &driver, &types);
        void* device = nullptr;
        CHECK(zeDeviceGet, driver, &(count = 1), &device);
        const Flags context{0xd, nullptr, 0}, fence{0x12, nullptr, 0};
        const QueueDesc queue{0xe, nullptr, 0, 0, 0, ASYNCHRONOUS, 0};
        const ListDesc list{0xf, nullptr, 0, 0};
        CHECK(zeContextCreate, driver, &context, &context_);
        CHECK(zeCommandQueueCreate, context_, device, &queue, &queue_);
        CHECK(zeFenceCreate, queue_, &fence, &fence_);
        CHECK(zeCommandListCreate, context_, device, &list, &list_);
        CHECK(zeCommandListAppendBarrier, list_, nullptr, 0, nullptr);
        CHECK(zeCommandListClose, list_);
    }

    ~EmptySubmission() {
        CHECK(zeFenceDestroy, fence_);
        CHECK(zeCommandListDestroy, list_);
        CHECK(zeCommandQueueDestroy, queue_);
        CHECK(zeContextDestroy, context_);
    }

    // Microseconds of one round trip.
    double ask() {
        const auto start = std::chrono::steady_clock::now();
        CHECK(zeCommandQueueExecuteCommandLists, queue_, 1, &list_, fence_);
        CHECK(zeFenceHostSynchronize, fence_, DEADLINE_NS);
        const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
        CHECK(zeFenceReset, fence_);
        return time.count();
    }

private:
    void *context_ = nullptr, *queue_ = nullptr, *list_ = nullptr, *fence_ = nullptr;
};

void round_of(EmptySubmission& empty, int count) {
    if (count < 1) std::exit(2);
    empty.ask();  // wakes the other side: not counted
    std::vector<double> times(static_cast<size_t>(count));
    for (auto& time : times) time = empty.ask();
    std::sort(times.begin(), times.end());
    std::printf("%.3f %.3f\n", times[times.size() / 2], times[times.size() * 9 / 10]);
    std::fflush(stdout);
}

}  // namespace

int main(int count, char** words) {
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // `softnpu bench counters` counts its system calls
    EmptySubmission empty;
    for (int index = 1; index < count; ++index) round_of(empty, std::atoi(words[index]));
    for (int trips; count == 1 && std::scanf("%d", &trips) == 1;) round_of(empty, trips);
}
