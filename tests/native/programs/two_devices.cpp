// Two devices of one daemon: a context on each, work on both, and a device that is not the context's.
#include <initializer_list>

#include "npu.hpp"

int main() {
    const Npu first;
    ze_device_handle_t devices[2] = {};
    uint32_t count = 2;
    first.check(zeDeviceGet(first.driver, &count, devices), "zeDeviceGet");
    if (count != 2) std::abort();
    Npu second = first;
    second.device = devices[1];
    ze_context_desc_t desc{0xd, nullptr, 0};
    first.check(zeContextCreate(first.driver, &desc, &second.context), "zeContextCreate");
    for (const Npu* npu : {static_cast<const Npu*>(&second), &first}) {
        auto queue = npu->queue();
        auto list = npu->list();
        auto fence = npu->fence(queue);
        uint8_t* const from = npu->host(4096);
        uint8_t* const to = npu->host(4096);
        std::memset(from, 0x5a, 4096);
        npu->check(zeCommandListAppendMemoryCopy(list, to, from, 4096, nullptr, 0, nullptr), "copy");
        npu->check(zeCommandListClose(list), "close");
        npu->check(zeCommandQueueExecuteCommandLists(queue, 1, &list, fence), "execute");
        npu->check(zeFenceHostSynchronize(fence, UINT64_MAX), "wait");
        if (std::memcmp(from, to, 4096) != 0) std::abort();
        ze_memory_allocation_properties_t properties{};
        properties.stype = static_cast<ze_structure_type_t>(0x17);
        ze_device_handle_t of = nullptr;
        npu->check(zeMemGetAllocProperties(npu->context, from, &properties, &of), "properties");
        if (of != npu->device) std::abort();
        npu->check(zeFenceDestroy(fence), "fence");
        npu->check(zeCommandListDestroy(list), "list");
        npu->check(zeCommandQueueDestroy(queue), "queue");
    }
    ze_command_list_desc_t list_desc{0xf, nullptr, 0, 0};
    ze_command_list_handle_t list;
    if (zeCommandListCreate(second.context, first.device, &list_desc, &list) !=
        ZE_RESULT_ERROR_INVALID_ARGUMENT)
        std::abort();
    first.check(zeContextDestroy(second.context), "zeContextDestroy");
    first.check(zeContextDestroy(first.context), "zeContextDestroy");
    std::puts("done");
}
