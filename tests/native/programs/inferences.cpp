// Many threads compile, load, bind and execute a model, with lists that are made once and lists that are
// changed. Arguments: XML, weights, threads, rounds of each.
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "model.hpp"

namespace {

constexpr size_t IN = 64, OUT = 10;

float* tensor(const Npu& npu, size_t elements, float value) {
    auto* const made = reinterpret_cast<float*>(npu.host(elements * sizeof(float)));
    for (size_t at = 0; at < elements; ++at) made[at] = value;
    return made;
}

void work(const Model& model, ze_graph_handle_t shared, ze_command_queue_handle_t queue, int rounds,
          int worker) {
    const Npu& npu = model.npu;
    const bool own = worker % 2 == 0;
    ze_graph_handle_t graph = own ? model.compile() : shared;
    float* const first = tensor(npu, IN, 0.25f * static_cast<float>(worker));
    float* const second = tensor(npu, IN, 0.5f);
    float* const output = tensor(npu, OUT, 0);
    static std::atomic_flag binding = ATOMIC_FLAG_INIT;
    ze_mutable_exp_desc_t changeable{0x20016, nullptr, 0};
    ze_command_list_desc_t desc{0xf, &changeable, 0, 0};
    ze_command_list_handle_t list;
    npu.check(zeCommandListCreate(npu.context, npu.device, &desc, &list), "list");
    ze_mutable_exp_desc_t arguments{0x20017, nullptr, ZE_MUTABLE_COMMAND_EXP_FLAG_GRAPH_ARGUMENTS};
    uint64_t id;
    npu.check(zeCommandListGetNextCommandIdExp(list, &arguments, &id), "id");
    // arguments belong to the graph: who shares one binds and appends at one go
    while (binding.test_and_set()) std::this_thread::yield();
    npu.check(model.table.pfnSetArgumentValue(graph, 0, first), "input");
    npu.check(model.table.pfnSetArgumentValue(graph, 1, output), "output");
    npu.check(model.table.pfnAppendGraphExecute(list, graph, nullptr, nullptr, 0, nullptr), "execute");
    binding.clear();
    npu.check(zeCommandListClose(list), "close");
    auto fence = npu.fence(queue);
    std::vector<float> seen[2];
    for (int round = 0; round < rounds; ++round) {
        ze_mutable_graph_argument_exp_desc_t argument{0x20020, nullptr, id, 0,
                                                      round % 2 == 0 ? first : second};
        ze_mutable_exp_desc_t update{0x20018, &argument, 0};
        npu.check(zeCommandListUpdateMutableCommandsExp(list, &update), "update");
        npu.check(zeCommandQueueExecuteCommandLists(queue, 1, &list, fence), "submit");
        npu.check(zeFenceHostSynchronize(fence, UINT64_MAX), "synchronize");
        npu.check(zeFenceReset(fence), "reset");
        const std::vector<float> result(output, output + OUT);
        auto& expected = seen[round % 2];
        if (expected.empty()) expected = result;
        if (result != expected) {
            std::fprintf(stderr, "worker %d, round %d: another result\n", worker, round);
            std::abort();
        }
    }
    npu.check(zeFenceDestroy(fence), "fence");
    npu.check(zeCommandListDestroy(list), "list");
    if (own) npu.check(model.table.pfnDestroy(graph), "graph");
    for (float* const memory : {first, second, output}) npu.check(zeMemFree(npu.context, memory), "free");
}

}  // namespace

int main(int count, char** words) {
    if (count < 5) return 2;
    const Npu npu;
    const std::string bytes = serialised(npu, words[1], words[2]);
    const auto& table = graph_table(npu);
    const Model model{npu, table, bytes};
    auto queue = npu.queue();
    const auto shared = model.compile();
    std::vector<std::thread> workers;
    for (int worker = 0; worker < std::atoi(words[3]); ++worker) {
        workers.emplace_back(work, std::cref(model), shared, queue, std::atoi(words[4]), worker);
    }
    for (auto& worker : workers) worker.join();
    npu.check(table.pfnDestroy(shared), "graph");
    npu.check(zeCommandQueueDestroy(queue), "queue");
    npu.check(zeContextDestroy(npu.context), "context");
    std::puts("done");
}
