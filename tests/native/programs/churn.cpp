// Inferences from many threads while everything is made and destroyed all the time, often in flight: graphs,
// queues, lists, fences, memory. Every result that is waited for is compared.
// Arguments: XML, weights, threads, inferences of each. Prints kilobytes of memory and open descriptors after
// a tenth of the work and after all of it.
#include <dirent.h>

#include <algorithm>
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

class Worker {
public:
    Worker(const Model& model, int number) : model_(model), npu_(model.npu), value_(0.125f * (1 + number)) {}

    void run(int inferences) {
        while (inferences > 0) {
            const auto graph = model_.compile();
            for (int left = std::min(inferences, PER_GRAPH); left > 0; left -= PER_QUEUE) {
                const auto queue = npu_.queue();
                for (int at = 0; at < std::min(left, PER_QUEUE); at += PER_LIST) {
                    with_list(graph, queue, std::min(PER_LIST, std::min(left, PER_QUEUE) - at));
                }
                npu_.check(zeCommandQueueDestroy(queue), "queue");
            }
            npu_.check(model_.table.pfnDestroy(graph), "graph");
            inferences -= PER_GRAPH;
        }
    }

private:
    void with_list(ze_graph_handle_t graph, ze_command_queue_handle_t queue, int rounds) {
        const Buffers buffers(npu_, value_);
        const auto list = npu_.list();
        npu_.check(model_.table.pfnSetArgumentValue(graph, 0, buffers.input), "input");
        npu_.check(model_.table.pfnSetArgumentValue(graph, 1, buffers.output), "output");
        npu_.check(model_.table.pfnAppendGraphExecute(list, graph, nullptr, nullptr, 0, nullptr), "append");
        npu_.check(zeCommandListClose(list), "close");
        const auto fence = npu_.fence(queue);
        for (int round = 1; round <= rounds; ++round) {
            auto submitted = list;
            npu_.check(zeCommandQueueExecuteCommandLists(queue, 1, &submitted, fence), "submit");
            if (round == rounds) break;  // the last one is in flight when all of it is destroyed
            npu_.check(zeFenceHostSynchronize(fence, UINT64_MAX), "synchronize");
            npu_.check(zeFenceReset(fence), "reset");
            compare(buffers.output);
        }
        npu_.check(zeFenceDestroy(fence), "fence");
        npu_.check(zeCommandListDestroy(list), "list");
    }

    void compare(const float* output) {
        const std::vector<float> found(output, output + OUT);
        if (expected_.empty()) expected_ = found;
        if (found == expected_) return;
        std::fputs("another result\n", stderr);
        std::abort();
    }

    const Model& model_;
    const Npu& npu_;
    const float value_;
    std::vector<float> expected_;
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
    for (const int part : {inferences / 10, inferences - inferences / 10}) {
        std::vector<std::thread> threads;
        for (int number = 0; number < std::atoi(words[3]); ++number) {
            threads.emplace_back([&, number] { Worker(model, number).run(part); });
        }
        for (auto& thread : threads) thread.join();
        report();
    }
    npu.check(zeContextDestroy(npu.context), "context");
    std::puts("done");
}
