// The queues of older programs: a structure is chained whose memory has got other contents since, but its
// options.
#include <initializer_list>

#include "abi/extensions.hpp"
#include "npu.hpp"

int main() {
    const Npu npu;
    void* const astray = reinterpret_cast<void*>(0x10);  // no address of this process
    ze_command_queue_desc_npu_ext_t turbo{};
    turbo.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC_NPU_EXT;
    turbo.pNext = astray;
    turbo.turbo = true;
    ze_command_queue_desc_npu_ext_2_t options{};
    options.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC_NPU_EXT_2;
    options.pNext = astray;
    options.options = ZE_NPU_COMMAND_QUEUE_OPTION_TURBO;
    ze_base_properties_t unknown{};
    unknown.stype = 0x7ffe;
    unknown.pNext = astray;
    for (void* const chained :
         {static_cast<void*>(&turbo), static_cast<void*>(&options), static_cast<void*>(&unknown)}) {
        ze_command_queue_desc_t desc{0xe, chained, 0, 0, 0, ZE_COMMAND_QUEUE_MODE_DEFAULT, 0};
        ze_command_queue_handle_t queue;
        npu.check(zeCommandQueueCreate(npu.context, npu.device, &desc, &queue), "zeCommandQueueCreate");
        auto list = npu.list();
        npu.check(zeCommandListClose(list), "close");
        npu.check(zeCommandQueueExecuteCommandLists(queue, 1, &list, nullptr), "execute");
        npu.check(zeCommandQueueSynchronize(queue, UINT64_MAX), "wait");
        npu.check(zeCommandListDestroy(list), "list");
        npu.check(zeCommandQueueDestroy(queue), "queue");
    }
    npu.check(zeContextDestroy(npu.context), "zeContextDestroy");
    std::puts("done");
}
