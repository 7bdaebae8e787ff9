// Many threads append fills to one immediate list at once. Arguments: threads, fills per thread, mode of the
// queue.
#include <string>
#include <thread>
#include <vector>

#include "npu.hpp"

namespace {

constexpr size_t FILL = 64;

}  // namespace

int main(int, char** argv) {
    const Npu npu;
    const size_t threads = std::strtoul(argv[1], nullptr, 10), fills = std::strtoul(argv[2], nullptr, 10);
    ze_command_queue_desc_t desc{0xe, nullptr, 0, 0, 0, ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS, 0};
    if (std::string(argv[3]) == "synchronous") desc.mode = ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS;
    ze_command_list_handle_t list;
    npu.check(zeCommandListCreateImmediate(npu.context, npu.device, &desc, &list), "immediate list");
    uint8_t* const memory = npu.host(threads * fills * FILL);
    std::memset(memory, 0, threads * fills * FILL);
    std::vector<std::thread> running;
    for (size_t number = 0; number < threads; ++number) {
        running.emplace_back([&, number] {
            const uint8_t one = 1;
            for (size_t at = number * fills; at < (number + 1) * fills; ++at) {
                npu.check(zeCommandListAppendMemoryFill(list, memory + at * FILL, &one, 1, FILL, nullptr, 0,
                                                        nullptr),
                          "fill");
            }
        });
    }
    for (auto& thread : running) thread.join();
    npu.check(zeCommandListHostSynchronize(list, UINT64_MAX), "synchronize");
    size_t missing = 0;
    for (size_t at = 0; at < threads * fills; ++at) missing += memory[at * FILL] != 1;
    std::printf("%zu of %zu fills are missing\n", missing, threads * fills);
    npu.check(zeCommandListDestroy(list), "destroy");
    npu.check(zeMemFree(npu.context, memory), "free");
    npu.check(zeContextDestroy(npu.context), "context");
}
