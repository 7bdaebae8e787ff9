#include "base/guard.hpp"
#include "base/runtime.hpp"
#include "commands/event.hpp"
#include "commands/fence.hpp"
#include "commands/list.hpp"
#include "commands/queue.hpp"
#include "entry/calls.hpp"
#include "entry/queue_options.hpp"

using namespace softnpu;

namespace softnpu {

QueueOptions queue_options(const ze_command_queue_desc_t& desc) {
    uint32_t extra = 0;
    for (auto* link = static_cast<const ze_base_properties_t*>(desc.pNext); link != nullptr;
         link = static_cast<const ze_base_properties_t*>(link->pNext)) {
        if (link->stype == ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC_NPU_EXT) {
            const bool turbo = reinterpret_cast<const ze_command_queue_desc_npu_ext_t*>(link)->turbo != 0;
            if (turbo) extra |= ZE_NPU_COMMAND_QUEUE_OPTION_TURBO;
        } else if (link->stype == ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC_NPU_EXT_2) {
            extra |= reinterpret_cast<const ze_command_queue_desc_npu_ext_2_t*>(link)->options;
        }
    }
    if (desc.ordinal != 0) {
        throw error(ZE_RESULT_ERROR_INVALID_ARGUMENT, "command queue group",
                    format("ordinal %u", desc.ordinal), "0");
    }
    if (desc.mode > ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS) {
        throw error(ZE_RESULT_ERROR_INVALID_ENUMERATION, "command queue", format("mode %u", desc.mode),
                    "0, 1 or 2");
    }
    const bool device_sync = (extra & ZE_NPU_COMMAND_QUEUE_OPTION_DEVICE_SYNC) != 0;
    if (device_sync && desc.mode == ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS) {
        throw error(ZE_RESULT_ERROR_INVALID_ENUMERATION, "command queue",
                    "DEVICE_SYNC with the synchronous mode", "the asynchronous mode");
    }
    QueueOptions options;
    options.mode = desc.mode;
    options.priority = desc.priority;
    // submissions of a queue always run in order here, so DEVICE_SYNC needs nothing; it excludes turbo
    options.turbo = (extra & ZE_NPU_COMMAND_QUEUE_OPTION_TURBO) != 0 && !device_sync;
    return options;
}

}  // namespace softnpu

namespace {

ze_result_t ready(bool done) { return done ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY; }

}  // namespace

ZE_EXPORT ze_result_t zeCommandQueueCreate(ze_context_handle_t hContext, ze_device_handle_t hDevice,
                                           const ze_command_queue_desc_t* desc,
                                           ze_command_queue_handle_t* phCommandQueue) {
    return guarded(__func__, [&] {
        const auto context = live<Context>(hContext);
        const auto device = live<Device>(hDevice);
        given(desc, "desc");
        given(phCommandQueue, "phCommandQueue");
        context->check_device(*device);
        *phCommandQueue =
            new_handle<ze_command_queue_handle_t>(CommandQueue::create(context, queue_options(*desc)));
        return ZE_RESULT_SUCCESS;
    });
}

ZE_EXPORT ze_result_t zeCommandQueueDestroy(ze_command_queue_handle_t hCommandQueue) {
    return guarded(__func__, [&] {
        take<CommandQueue>(hCommandQueue);
        return ZE_RESULT_SUCCESS;
    });
}

ZE_EXPORT ze_result_t zeCommandQueueExecuteCommandLists(ze_command_queue_handle_t hCommandQueue,
                                                        uint32_t numCommandLists,
                                                        ze_command_list_handle_t* phCommandLists,
                                                        ze_fence_handle_t hFence) {
    return guarded(__func__, [&] {
        const auto queue = live<CommandQueue>(hCommandQueue);
        given(phCommandLists, "phCommandLists");
        if (numCommandLists == 0) {
            throw error(ZE_RESULT_ERROR_INVALID_SIZE, "command lists", "none", "at least one");
        }
        std::vector<std::shared_ptr<CommandList>> lists;
        for (uint32_t index = 0; index < numCommandLists; ++index) {
            given(phCommandLists[index], "phCommandLists");
            lists.push_back(live<CommandList>(phCommandLists[index]));
        }
        queue->execute(lists, hFence == nullptr ? nullptr : live<Fence>(hFence));
        return ZE_RESULT_SUCCESS;
    });
}

ZE_EXPORT ze_result_t zeCommandQueueSynchronize(ze_command_queue_handle_t hCommandQueue, uint64_t timeout) {
    return guarded(__func__, [&] { return ready(live<CommandQueue>(hCommandQueue)->synchronize(timeout)); });
}

ZE_EXPORT ze_result_t zeFenceCreate(ze_command_queue_handle_t hCommandQueue, const ze_fence_desc_t* desc,
                                    ze_fence_handle_t* phFence) {
    return guarded(__func__, [&] {
        const auto queue = live<CommandQueue>(hCommandQueue);
        given(desc, "desc");
        given(phFence, "phFence");
        const bool signalled = (desc->flags & ZE_FENCE_FLAG_SIGNALED) != 0;
        *phFence = new_handle<ze_fence_handle_t>(std::make_shared<Fence>(queue, signalled));
        return ZE_RESULT_SUCCESS;
    });
}

ZE_EXPORT ze_result_t zeFenceDestroy(ze_fence_handle_t hFence) {
    return guarded(__func__, [&] {
        take<Fence>(hFence);
        return ZE_RESULT_SUCCESS;
    });
}

ZE_EXPORT ze_result_t zeFenceHostSynchronize(ze_fence_handle_t hFence, uint64_t timeout) {
    return guarded(__func__, [&] { return ready(live<Fence>(hFence)->wait(timeout)); });
}

ZE_EXPORT ze_result_t zeFenceQueryStatus(ze_fence_handle_t hFence) {
    return guarded(__func__, [&] { return ready(live<Fence>(hFence)->wait(0)); });
}

ZE_EXPORT ze_result_t zeFenceReset(ze_fence_handle_t hFence) {
    return guarded(__func__, [&] {
        live<Fence>(hFence)->reset();
        return ZE_RESULT_SUCCESS;
    });
}

ZE_EXPORT ze_result_t zeEventPoolCreate(ze_context_handle_t hContext, const ze_event_pool_desc_t* desc,
                                        uint32_t numDevices, ze_device_handle_t* phDevices,
                                        ze_event_pool_handle_t* phEventPool) {
    return guarded(__func__, [&] {
        const auto context = live<Context>(hContext);
        given(desc, "desc");
        given(phEventPool, "phEventPool");
        if (desc->count == 0 || (numDevices > 0 && phDevices == nullptr)) {
            throw error(ZE_RESULT_ERROR_INVALID_SIZE, "event pool",
                        format("%u events, %u devices", desc->count, numDevices),
                        "at least 1 event, and an array with the devices");
        }
        for (uint32_t index = 0; index < numDevices; ++index) live<Device>(phDevices[index]);
        *phEventPool = new_handle<ze_event_pool_handle_t>(std::make_shared<EventPool>(context, desc->count));
        return ZE_RESULT_SUCCESS;
    });
}

ZE_EXPORT ze_result_t zeEventPoolDestroy(ze_event_pool_handle_t hEventPool) {
    return guarded(__func__, [&] {
        const auto context = take<EventPool>(hEventPool)->context;
        context->memory()->flush();
        return ZE_RESULT_SUCCESS;
    });
}

ZE_EXPORT ze_result_t zeEventCreate(ze_event_pool_handle_t hEventPool, const ze_event_desc_t* desc,
                                    ze_event_handle_t* phEvent) {
    return guarded(__func__, [&] {
        const auto pool = live<EventPool>(hEventPool);
        given(desc, "desc");
        given(phEvent, "phEvent");
        *phEvent = new_handle<ze_event_handle_t>(std::make_shared<Event>(pool, desc->index));
        return ZE_RESULT_SUCCESS;
    });
}

ZE_EXPORT ze_result_t zeEventDestroy(ze_event_handle_t hEvent) {
    return guarded(__func__, [&] {
        take<Event>(hEvent);
        return ZE_RESULT_SUCCESS;
    });
}

ZE_EXPORT ze_result_t zeEventHostSignal(ze_event_handle_t hEvent) {
    return guarded(__func__, [&] {
        live<Event>(hEvent)->host_signal();
        return ZE_RESULT_SUCCESS;
    });
}

ZE_EXPORT ze_result_t zeEventHostReset(ze_event_handle_t hEvent) {
    return guarded(__func__, [&] {
        live<Event>(hEvent)->host_reset();
        return ZE_RESULT_SUCCESS;
    });
}

ZE_EXPORT ze_result_t zeEventQueryStatus(ze_event_handle_t hEvent) {
    return guarded(__func__, [&] { return ready(live<Event>(hEvent)->signalled()); });
}

ZE_EXPORT ze_result_t zeEventHostSynchronize(ze_event_handle_t hEvent, uint64_t timeout) {
    return guarded(__func__, [&] { return ready(live<Event>(hEvent)->wait(timeout)); });
}
