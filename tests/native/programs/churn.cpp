// Inferences from many threads while objects are constantly created and destroyed, often in flight: graphs,
// queues, lists, fences, events, memory. Every second thread shares one graph with others; lists are changed
// after they were closed; wrong and stale handles are errors. Every awaited result is compared.
// Arguments: XML, weights, threads, inferences per thread. Prints kilobytes of memory and open descriptors
// after a tenth of the work and after all of it.
#include <dirent.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "model.hpp"

namespace {

constexpr size_t IN = 64, OUT = 10;
constexpr int PER_QUEUE = 50, PER_LIST = 10, PER_GRAPH = 500;

struct Buffers {
    const Npu& npu;
    float* const input;
    float* const output;

    Buffers(const Npu& of, float value)
        : npu(of),
          input(reinterpret_cast<float*>(of.host(IN * sizeof(float)))),
          output(reinterpret_cast<float*>(of.host(OUT * sizeof(float)))) {
        for (size_t at = 0; at < IN; ++at) input[at] = value;
    }
    ~Buffers() {
        npu.check(zeMemFree(npu.context, input), "free");
        npu.check(zeMemFree(npu.context, output), "free");
    }
    Buffers(const Buffers&) = delete;
};

// Shared by all threads.
struct Shared {
    const Model& model;
    const ze_graph_handle_t graph = model.compile();
    const ze_fence_handle_t stale = stale_fence(model.npu);
    std::mutex binding;  // arguments belong to the graph: sharers bind and append atomically

    static ze_fence_handle_t stale_fence(const Npu& npu) {
        const auto queue = npu.queue();
        const auto fence = npu.fence(queue);
        npu.check(zeFenceDestroy(fence), "fence");
        npu.check(zeCommandQueueDestroy(queue), "queue");
        return fence;
    }
};

class Worker {
public:
    Worker(Shared& shared, int number)
        : shared_(shared),
          model_(shared.model),
          npu_(model_.npu),
          own_(number % 2 == 0),
          value_(0.125f * (1 + number)) {}

    void run(int inferences) {
        while (inferences > 0) {
            const auto graph = own_ ? model_.compile() : shared_.graph;
            for (int left = std::min(inferences, PER_GRAPH); left > 0; left -= PER_QUEUE) {
                const auto queue = npu_.queue();
                for (int at = 0; at < std::min(left, PER_QUEUE); at += PER_LIST) {
                    with_list(graph, queue, std::min(PER_LIST, std::min(left, PER_QUEUE) - at));
                }
                npu_.check(zeCommandQueueDestroy(queue), "queue");
            }
            if (own_) npu_.check(model_.table.pfnDestroy(graph), "graph");
            inferences -= PER_GRAPH;
        }
    }

private:
    void with_list(ze_graph_handle_t graph, ze_command_queue_handle_t queue, int rounds) {
        use_event();
        misuse();
        const Buffers buffers(npu_, value_), others(npu_, 2.0f);
        ze_mutable_exp_desc_t changeable{0x20016, nullptr, 0};
        ze_command_list_desc_t desc{0xf, &changeable, 0, 0};
        ze_command_list_handle_t list;
        npu_.check(zeCommandListCreate(npu_.context, npu_.device, &desc, &list), "list");
        ze_mutable_exp_desc_t arguments{0x20017, nullptr, ZE_MUTABLE_COMMAND_EXP_FLAG_GRAPH_ARGUMENTS};
        uint64_t id;
        npu_.check(zeCommandListGetNextCommandIdExp(list, &arguments, &id), "id");
        {
            const std::lock_guard lock(shared_.binding);
            npu_.check(model_.table.pfnSetArgumentValue(graph, 0, buffers.input), "input");
            npu_.check(model_.table.pfnSetArgumentValue(graph, 1, buffers.output), "output");
            npu_.check(model_.table.pfnAppendGraphExecute(list, graph, nullptr, nullptr, 0, nullptr),
                       "append");
        }
        npu_.check(zeCommandListClose(list), "close");
        const auto fence = npu_.fence(queue);
        for (int round = 1; round <= rounds; ++round) {
            auto submitted = list;
            ze_mutable_graph_argument_exp_desc_t argument{0x20020, nullptr, id, 0,
                                                          round % 2 == 0 ? buffers.input : others.input};
            ze_mutable_exp_desc_t update{0x20018, &argument, 0};
            npu_.check(zeCommandListUpdateMutableCommandsExp(list, &update), "update");
            npu_.check(zeCommandQueueExecuteCommandLists(queue, 1, &submitted, fence), "submit");
            if (round == rounds) break;  // the last one is in flight when everything is destroyed
            npu_.check(zeFenceHostSynchronize(fence, UINT64_MAX), "synchronize");
            npu_.check(zeFenceReset(fence), "reset");
            compare(buffers.output, expected_[round % 2]);
        }
        npu_.check(zeFenceDestroy(fence), "fence");
        npu_.check(zeCommandListDestroy(list), "list");
    }

    void compare(const float* output, std::vector<float>& expected) {
        const std::vector<float> found(output, output + OUT);
        if (expected.empty()) expected = found;
        if (found == expected && expected_[0] != expected_[1]) return;
        std::fputs("another result\n", stderr);
        std::abort();
    }

    void use_event() {
        ze_event_pool_desc_t pool_desc{0x10, nullptr, 0, 1};
        ze_event_desc_t desc{0x11, nullptr, 0, 0, 0};
        ze_event_pool_handle_t pool;
        ze_event_handle_t event;
        npu_.check(zeEventPoolCreate(npu_.context, &pool_desc, 0, nullptr, &pool), "event pool");
        npu_.check(zeEventCreate(pool, &desc, &event), "event");
        npu_.check(zeEventHostSignal(event), "signal");
        npu_.check(zeEventHostSynchronize(event, UINT64_MAX), "synchronize event");
        npu_.check(zeEventDestroy(event), "destroy event");
        npu_.check(zeEventPoolDestroy(pool), "destroy event pool");
    }

    void misuse() {
        if (zeFenceQueryStatus(shared_.stale) != ZE_RESULT_ERROR_INVALID_NULL_HANDLE) std::abort();
        if (zeFenceQueryStatus(reinterpret_cast<ze_fence_handle_t>(npu_.context)) !=
            ZE_RESULT_ERROR_INVALID_ARGUMENT)
            std::abort();
        if (zeMemFree(npu_.context, &shared_) != ZE_RESULT_ERROR_INVALID_ARGUMENT) std::abort();
    }

    Shared& shared_;
    const Model& model_;
    const Npu& npu_;
    const bool own_;
    const float value_;
    std::vector<float> expected_[2];
};

void report() {
    std::ifstream status("/proc/self/status");
    std::string word;
    while (status >> word && word != "VmRSS:") {
    }
    long kilobytes = 0;
    status >> kilobytes;
    int descriptors = 0;
    DIR* const folder = opendir("/proc/self/fd");
    while (readdir(folder) != nullptr) ++descriptors;
    closedir(folder);
    std::printf("%ld %d\n", kilobytes, descriptors);
}

}  // namespace

int main(int count, char** words) {
    if (count < 5) return 2;
    const Npu npu;
    const std::string bytes = serialised(npu, words[1], words[2]);
    const Model model{npu, graph_table(npu), bytes};
    const int inferences = std::atoi(words[4]);
    Shared shared{model};
    for (const int part : {inferences / 10, inferences - inferences / 10}) {
        std::vector<std::thread> threads;
        for (int number = 0; number < std::atoi(words[3]); ++number) {
            threads.emplace_back([&, number] { Worker(shared, number).run(part); });
        }
        for (auto& thread : threads) thread.join();
        report();
    }
    npu.check(model.table.pfnDestroy(shared.graph), "graph");
    npu.check(zeContextDestroy(npu.context), "context");
    std::puts("done");
}
