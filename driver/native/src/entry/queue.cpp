// Command queues, fences and events.
#include "commands/fence.hpp"
#include "commands/queue.hpp"
#include "entry/calls.hpp"

using namespace softnpu;

namespace {

// The options of a chain's first link, the only one that Intel's driver reads: OpenVINO 2024.6 chains a turbo
// structure whose scope has ended, so that its own link may be anything that is on the stack by now.
uint32_t chained_options(const void* next) {
    const auto* link = static_cast<const ze_base_properties_t*>(next);
    if (link == nullptr) return 0;
    if (link->stype == ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC_NPU_EXT) {
        const bool turbo = static_cast<const ze_command_queue_desc_npu_ext_t*>(link)->turbo != 0;
        return turbo ? uint32_t{ZE_NPU_COMMAND_QUEUE_OPTION_TURBO} : 0;
    }
    if (link->stype == ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC_NPU_EXT_2) {
        return static_cast<const ze_command_queue_desc_npu_ext_2_t*>(link)->options;
    }
    return 0;
}

}  // namespace

namespace softnpu {

QueueOptions queue_options(const ze_command_queue_desc_t& desc) {
    const uint32_t extra = chained_options(desc.pNext);
    if (desc.ordinal != 0) {
        throw invalid_argument("command queue group", format("ordinal %u", desc.ordinal), "0");
    }
    if (desc.mode > ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS) {
        throw invalid_enumeration("command queue", format("mode %u", desc.mode), "0, 1 or 2");
    }
    const bool device_sync = (extra & ZE_NPU_COMMAND_QUEUE_OPTION_DEVICE_SYNC) != 0;
    if (device_sync && desc.mode == ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS) {
        throw invalid_enumeration("command queue", "DEVICE_SYNC with the synchronous mode",
                                  "the asynchronous mode");
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
        const auto context = lookup_live<Context>(hContext);
        const auto device = lookup_live<Device>(hDevice);
        require_nonnull(desc, "desc");
        require_nonnull(phCommandQueue, "phCommandQueue");
        context->check_device(*device);
        *phCommandQueue =
            new_handle<ze_command_queue_handle_t>(CommandQueue::create(context, queue_options(*desc)));
    });
}

ZE_EXPORT ze_result_t zeCommandQueueDestroy(ze_command_queue_handle_t hCommandQueue) {
    return guarded(__func__, [&] { remove<CommandQueue>(hCommandQueue); });
}

ZE_EXPORT ze_result_t zeCommandQueueExecuteCommandLists(ze_command_queue_handle_t hCommandQueue,
                                                        uint32_t numCommandLists,
                                                        ze_command_list_handle_t* phCommandLists,
                                                        ze_fence_handle_t hFence) {
    return guarded(__func__, [&] {
        const auto queue = lookup<CommandQueue>(hCommandQueue);
        require_nonnull(phCommandLists, "phCommandLists");
        if (numCommandLists == 0) {
            throw invalid_size("command lists", "none", "at least one");
        }
        std::vector<std::shared_ptr<CommandList>> lists;
        for (uint32_t index = 0; index < numCommandLists; ++index) {
            require_nonnull(phCommandLists[index], "phCommandLists");
            lists.push_back(lookup<CommandList>(phCommandLists[index]));
        }
        queue->execute(lists, hFence == nullptr ? nullptr : lookup<Fence>(hFence));
    });
}

ZE_EXPORT ze_result_t zeCommandQueueSynchronize(ze_command_queue_handle_t hCommandQueue, uint64_t timeout) {
    return guarded(__func__,
                   [&] { return ready(lookup<CommandQueue>(hCommandQueue)->synchronize(timeout)); });
}

ZE_EXPORT ze_result_t zeFenceCreate(ze_command_queue_handle_t hCommandQueue, const ze_fence_desc_t* desc,
                                    ze_fence_handle_t* phFence) {
    return guarded(__func__, [&] {
        const auto queue = lookup<CommandQueue>(hCommandQueue);
        require_nonnull(desc, "desc");
        require_nonnull(phFence, "phFence");
        const bool signalled = (desc->flags & ZE_FENCE_FLAG_SIGNALED) != 0;
        *phFence = new_handle<ze_fence_handle_t>(std::make_shared<Fence>(queue, signalled));
    });
}

ZE_EXPORT ze_result_t zeFenceDestroy(ze_fence_handle_t hFence) {
    return guarded(__func__, [&] { remove<Fence>(hFence); });
}

ZE_EXPORT ze_result_t zeFenceHostSynchronize(ze_fence_handle_t hFence, uint64_t timeout) {
    return guarded(__func__, [&] { return ready(lookup<Fence>(hFence)->wait(timeout)); });
}

ZE_EXPORT ze_result_t zeFenceQueryStatus(ze_fence_handle_t hFence) {
    return guarded(__func__, [&] { return ready(lookup<Fence>(hFence)->wait(0)); });
}

ZE_EXPORT ze_result_t zeFenceReset(ze_fence_handle_t hFence) {
    return guarded(__func__, [&] { lookup<Fence>(hFence)->reset(); });
}

ZE_EXPORT ze_result_t zeEventPoolCreate(ze_context_handle_t hContext, const ze_event_pool_desc_t* desc,
                                        uint32_t numDevices, ze_device_handle_t* phDevices,
                                        ze_event_pool_handle_t* phEventPool) {
    return guarded(__func__, [&] {
        const auto context = lookup_live<Context>(hContext);
        require_nonnull(desc, "desc");
        require_nonnull(phEventPool, "phEventPool");
        if (desc->count == 0 || (numDevices > 0 && phDevices == nullptr)) {
            throw invalid_size("event pool", format("%u events, %u devices", desc->count, numDevices),
                               "at least 1 event, and an array with the devices");
        }
        for (uint32_t index = 0; index < numDevices; ++index) lookup<Device>(phDevices[index]);
        *phEventPool = new_handle<ze_event_pool_handle_t>(std::make_shared<EventPool>(context, desc->count));
    });
}

ZE_EXPORT ze_result_t zeEventPoolDestroy(ze_event_pool_handle_t hEventPool) {
    return guarded(__func__, [&] {
        const auto context = remove<EventPool>(hEventPool)->context;
        context->memory()->flush();
    });
}

ZE_EXPORT ze_result_t zeEventCreate(ze_event_pool_handle_t hEventPool, const ze_event_desc_t* desc,
                                    ze_event_handle_t* phEvent) {
    return guarded(__func__, [&] {
        const auto pool = lookup<EventPool>(hEventPool);
        require_nonnull(desc, "desc");
        require_nonnull(phEvent, "phEvent");
        *phEvent = new_handle<ze_event_handle_t>(std::make_shared<Event>(pool, desc->index));
    });
}

ZE_EXPORT ze_result_t zeEventDestroy(ze_event_handle_t hEvent) {
    return guarded(__func__, [&] { remove<Event>(hEvent); });
}

ZE_EXPORT ze_result_t zeEventHostSignal(ze_event_handle_t hEvent) {
    return guarded(__func__, [&] { lookup<Event>(hEvent)->host_signal(); });
}

ZE_EXPORT ze_result_t zeEventHostReset(ze_event_handle_t hEvent) {
    return guarded(__func__, [&] { lookup<Event>(hEvent)->host_reset(); });
}

ZE_EXPORT ze_result_t zeEventQueryStatus(ze_event_handle_t hEvent) {
    return guarded(__func__, [&] { return ready(lookup<Event>(hEvent)->query()); });
}

ZE_EXPORT ze_result_t zeEventHostSynchronize(ze_event_handle_t hEvent, uint64_t timeout) {
    return guarded(__func__, [&] { return ready(lookup<Event>(hEvent)->wait(timeout)); });
}
