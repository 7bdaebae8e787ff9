// Command lists: creation, closing, execution, and their commands.
#include "entry/calls.hpp"

using namespace softnpu;

namespace {

bool wants_mutable(const ze_command_list_desc_t& desc) {
    for (const auto& link : ze_chain(desc.pNext)) {
        if (link.stype == ZE_STRUCTURE_TYPE_MUTABLE_COMMAND_LIST_EXP_DESC) return true;
    }
    return false;
}

std::shared_ptr<CommandListMutable> mutable_list(ze_command_list_handle_t handle) {
    const auto list = lookup<CommandList>(handle);
    if (!list->is_mutable()) {
        throw invalid_argument("command list", "an ordinary one",
                               "a list that was created with the mutable descriptor");
    }
    return std::static_pointer_cast<CommandListMutable>(list);
}

// The chain of a mutation: an argument, and after it its strides if it has any.
std::vector<Mutation> mutations_of(const void* next, const MemoryPool& memory) {
    std::vector<Mutation> mutations;
    for (const auto& link : ze_chain(next)) {
        if (link.stype == ZE_STRUCTURE_TYPE_MUTABLE_GRAPH_ARGUMENT_EXP_DESC ||
            link.stype == ZE_STRUCTURE_TYPE_MUTABLE_GRAPH_ARGUMENT_EXP_DESC_DEPRECATED) {
            const auto& argument = static_cast<const ze_mutable_graph_argument_exp_desc_t&>(link);
            mutations.push_back({argument.commandId, argument.argIndex,
                                 memory.resolve(argument.pArgValue, ZE_RESULT_ERROR_INVALID_ARGUMENT),
                                 std::nullopt});
        } else if (link.stype == ZE_STRUCTURE_TYPE_GRAPH_ARGUMENT_STRIDES && !mutations.empty()) {
            const auto& strides = static_cast<const ze_graph_argument_value_strides_t&>(link);
            mutations.back().strides.emplace();
            std::copy(std::begin(strides.userStrides), std::end(strides.userStrides),
                      mutations.back().strides->steps);
        } else {
            throw invalid_argument("mutation", format("structure type %#x", link.stype),
                                   "a graph argument, followed by its strides if it has any");
        }
    }
    return mutations;
}

// Refuses regions that the device cannot copy, or that do not match.
// As in Intel's driver, of the pitches only the target's is compared with the width: rows that are read may
// overlap.
void check_regions(const ze_copy_region_t& target, uint32_t target_pitch, const ze_copy_region_t& source,
                   bool slices) {
    if (target.width == 0 || target.width != source.width || target.height != source.height ||
        target.depth != source.depth) {
        throw invalid_size("copy region",
                           format("target %u x %u, source %u x %u", target.width, target.height, source.width,
                                  source.height),
                           "two regions of one size, at least 1 wide");
    }
    if (target_pitch < target.width) {
        throw invalid_size("copy region", format("target pitch %u, width %u", target_pitch, target.width),
                           "a pitch of at least the width");
    }
    for (const auto* region : {&target, &source}) {
        if (region->depth != 1 || region->originZ != 0 || slices) {
            throw unsupported_feature("copy region",
                                      format("depth %u, slice %u%s", region->depth, region->originZ,
                                             slices ? ", a slice pitch" : ""),
                                      "two dimensions: depth 1, no slice pitch");
        }
    }
}

MemoryRef start_of(const CommandList& list, const void* address, const ze_copy_region_t& region,
                   uint32_t pitch) {
    MemoryRef start = list.context->memory()->resolve(address, ZE_RESULT_ERROR_UNINITIALIZED);
    start.offset += static_cast<size_t>(region.originY) * pitch + region.originX;
    return start;
}

}  // namespace

ZE_EXPORT ze_result_t zeCommandListCreate(ze_context_handle_t hContext, ze_device_handle_t hDevice,
                                          const ze_command_list_desc_t* desc,
                                          ze_command_list_handle_t* phCommandList) {
    return guarded(__func__, [&] {
        const auto context = lookup_live<Context>(hContext);
        const auto device = lookup_live<Device>(hDevice);
        require_nonnull(desc, "desc");
        require_nonnull(phCommandList, "phCommandList");
        context->check_device(*device);
        if (desc->commandQueueGroupOrdinal != 0) {
            throw invalid_argument("command queue group",
                                   format("ordinal %u", desc->commandQueueGroupOrdinal), "0");
        }
        std::shared_ptr<CommandList> list;
        if (wants_mutable(*desc)) {
            list = std::make_shared<CommandListMutable>(context);
        } else {
            list = std::make_shared<CommandList>(context);
        }
        *phCommandList = new_handle<ze_command_list_handle_t>(list);
    });
}

ZE_EXPORT ze_result_t zeCommandListCreateImmediate(ze_context_handle_t hContext, ze_device_handle_t hDevice,
                                                   const ze_command_queue_desc_t* altdesc,
                                                   ze_command_list_handle_t* phCommandList) {
    return guarded(__func__, [&] {
        const auto context = lookup_live<Context>(hContext);
        const auto device = lookup_live<Device>(hDevice);
        require_nonnull(altdesc, "altdesc");
        require_nonnull(phCommandList, "phCommandList");
        context->check_device(*device);
        *phCommandList = new_handle<ze_command_list_handle_t>(std::static_pointer_cast<CommandList>(
            CommandListImmediate::create(context, queue_options(*altdesc))));
    });
}

ZE_EXPORT ze_result_t zeCommandListDestroy(ze_command_list_handle_t hCommandList) {
    return guarded(__func__, [&] {
        const auto context = remove<CommandList>(hCommandList)->context;
        context->memory()->flush();
    });
}

ZE_EXPORT ze_result_t zeCommandListClose(ze_command_list_handle_t hCommandList) {
    return guarded(__func__, [&] { lookup<CommandList>(hCommandList)->close(); });
}

ZE_EXPORT ze_result_t zeCommandListReset(ze_command_list_handle_t hCommandList) {
    return guarded(__func__, [&] { lookup<CommandList>(hCommandList)->reset(); });
}

ZE_EXPORT ze_result_t zeCommandListIsImmediate(ze_command_list_handle_t hCommandList,
                                               ze_bool_t* pIsImmediate) {
    return guarded(__func__, [&] {
        const auto list = lookup<CommandList>(hCommandList);
        require_nonnull(pIsImmediate, "pIsImmediate");
        *pIsImmediate = list->is_immediate();
    });
}

ZE_EXPORT ze_result_t zeCommandListHostSynchronize(ze_command_list_handle_t hCommandList, uint64_t timeout) {
    return guarded(__func__, [&] {
        return lookup<CommandList>(hCommandList)->host_synchronize(timeout) ? ZE_RESULT_SUCCESS
                                                                            : ZE_RESULT_NOT_READY;
    });
}

ZE_EXPORT ze_result_t zeCommandListAppendBarrier(ze_command_list_handle_t hCommandList,
                                                 ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
                                                 ze_event_handle_t* phWaitEvents) {
    return guarded(__func__, [&] {
        const auto list = lookup<CommandList>(hCommandList);
        list->append(barrier(), events_of(hSignalEvent, numWaitEvents, phWaitEvents));
    });
}

ZE_EXPORT ze_result_t zeCommandListAppendMemoryCopy(ze_command_list_handle_t hCommandList, void* dstptr,
                                                    const void* srcptr, size_t size,
                                                    ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
                                                    ze_event_handle_t* phWaitEvents) {
    return guarded(__func__, [&] {
        const auto list = lookup<CommandList>(hCommandList);
        const Events events = events_of(hSignalEvent, numWaitEvents, phWaitEvents);
        list->check_open();
        const MemoryRef target =
            list->context->memory()->resolve_target(dstptr, ZE_RESULT_ERROR_UNINITIALIZED);
        const MemoryRef source = list->context->memory()->resolve(srcptr, ZE_RESULT_ERROR_UNINITIALIZED);
        list->append(copy(target, source, size), events);
    });
}

ZE_EXPORT ze_result_t zeCommandListAppendMemoryCopyRegion(
    ze_command_list_handle_t hCommandList, void* dstptr, const ze_copy_region_t* dstRegion, uint32_t dstPitch,
    uint32_t dstSlicePitch, const void* srcptr, const ze_copy_region_t* srcRegion, uint32_t srcPitch,
    uint32_t srcSlicePitch, ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
    ze_event_handle_t* phWaitEvents) {
    return guarded(__func__, [&] {
        const auto list = lookup<CommandList>(hCommandList);
        require_nonnull(dstRegion, "dstRegion");
        require_nonnull(srcRegion, "srcRegion");
        const Events events = events_of(hSignalEvent, numWaitEvents, phWaitEvents);
        list->check_open();
        list->context->memory()->resolve_target(dstptr, ZE_RESULT_ERROR_UNINITIALIZED);
        const MemoryRef target = start_of(*list, dstptr, *dstRegion, dstPitch);
        const MemoryRef source = start_of(*list, srcptr, *srcRegion, srcPitch);
        check_regions(*dstRegion, dstPitch, *srcRegion, dstSlicePitch != 0 || srcSlicePitch != 0);
        if (dstRegion->height == 0) return;  // no row, no command, and no event
        list->append(copy_region(target, dstPitch, source, srcPitch, dstRegion->width, dstRegion->height),
                     events);
    });
}

ZE_EXPORT ze_result_t zeCommandListAppendMemoryFill(ze_command_list_handle_t hCommandList, void* ptr,
                                                    const void* pattern, size_t pattern_size, size_t size,
                                                    ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
                                                    ze_event_handle_t* phWaitEvents) {
    return guarded(__func__, [&] {
        const auto list = lookup<CommandList>(hCommandList);
        require_nonnull(pattern, "pattern");
        const Events events = events_of(hSignalEvent, numWaitEvents, phWaitEvents);
        list->check_open();
        if (pattern_size != 1 && pattern_size != 2 && pattern_size != 4) {
            throw invalid_size("fill pattern", format("%zu bytes", pattern_size), "1, 2 or 4 bytes");
        }
        const MemoryRef target =
            list->context->memory()->resolve_target(ptr, ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
        if (size > target.block->size - target.offset) {
            throw uninitialized("fill", format("%zu bytes at offset %zu", size, target.offset),
                                format("a range inside the %zu bytes of the allocation", target.block->size));
        }
        list->append(fill(target, size, pattern, pattern_size), events);
    });
}

ZE_EXPORT ze_result_t zeCommandListAppendWriteGlobalTimestamp(ze_command_list_handle_t hCommandList,
                                                              uint64_t* dstptr,
                                                              ze_event_handle_t hSignalEvent,
                                                              uint32_t numWaitEvents,
                                                              ze_event_handle_t* phWaitEvents) {
    return guarded(__func__, [&] {
        const auto list = lookup<CommandList>(hCommandList);
        const Events events = events_of(hSignalEvent, numWaitEvents, phWaitEvents);
        list->check_open();
        list->append(
            timestamp(list->context->memory()->resolve_target(dstptr, ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)),
            events);
    });
}

ZE_EXPORT ze_result_t zeCommandListAppendSignalEvent(ze_command_list_handle_t hCommandList,
                                                     ze_event_handle_t hEvent) {
    return guarded(__func__, [&] {
        const auto list = lookup<CommandList>(hCommandList);
        list->append_all({}, lookup<Event>(hEvent));
    });
}

ZE_EXPORT ze_result_t zeCommandListAppendWaitOnEvents(ze_command_list_handle_t hCommandList,
                                                      uint32_t numEvents, ze_event_handle_t* phEvents) {
    return guarded(__func__, [&] {
        const auto list = lookup<CommandList>(hCommandList);
        require_nonnull(phEvents, "phEvents");
        list->check_open();
        if (numEvents == 0) throw invalid_size("events", "none", "at least one");
        std::vector<Command> waits;
        for (const auto& event : wait_events(numEvents, phEvents)) {
            list->context->check_session(event->context());
            waits.push_back(event_wait(event->memory()));
        }
        list->append_all(std::move(waits), nullptr);
    });
}

ZE_EXPORT ze_result_t zeCommandListAppendEventReset(ze_command_list_handle_t hCommandList,
                                                    ze_event_handle_t hEvent) {
    return guarded(__func__, [&] {
        const auto list = lookup<CommandList>(hCommandList);
        const auto event = lookup<Event>(hEvent);
        list->context->check_session(event->context());
        std::vector<Command> commands;
        commands.push_back(event_reset(event->memory()));
        list->append_all(std::move(commands), nullptr);
    });
}

ZE_EXPORT ze_result_t zeCommandListGetNextCommandIdExp(ze_command_list_handle_t hCommandList,
                                                       const ze_mutable_exp_desc_t* desc,
                                                       uint64_t* pCommandId) {
    return guarded(__func__, [&] {
        const auto list = mutable_list(hCommandList);
        require_nonnull(desc, "desc");
        require_nonnull(pCommandId, "pCommandId");
        *pCommandId = list->next_command_id(desc->flags);
    });
}

ZE_EXPORT ze_result_t zeCommandListUpdateMutableCommandsExp(ze_command_list_handle_t hCommandList,
                                                            const ze_mutable_exp_desc_t* desc) {
    return guarded(__func__, [&] {
        const auto list = mutable_list(hCommandList);
        require_nonnull(desc, "desc");
        if (desc->flags != 0) {
            throw invalid_argument("mutation", format("flags %#x", desc->flags), "0");
        }
        list->update(mutations_of(desc->pNext, *list->context->memory()));
    });
}
