"""The functions of the API headers, one record each: `calls` prints them, and tests hold the code to them."""

from __future__ import annotations

import enum

from softnpu.driver.properties import Record


class Status(enum.Enum):
    """What a program gets."""

    SUPPORTED = "supported"
    REFUSED = "refused"
    ABSENT = "absent"


class Call(Record, frozen=True, kw_only=True):
    """One function of a C header. `python` is "Class.method", "Class.attribute" or "Class"."""

    name: str
    header: str
    part: str
    status: Status
    python: str = ""
    remark: str = ""


_CORE = "ze_api.h"
_SYSMAN = "zes_api.h"
_TOOLS = "zet_api.h"
_GRAPH = "ze_graph_ext.h"
_PROFILING = "ze_graph_profiling_ext.h"
_QUEUE = "ze_command_queue_npu_ext.h"
_CONTEXT = "ze_context_npu_ext.h"
_DRIVER = "ze_driver_npu_ext.h"
_NOT_YET = "not yet; Intel's driver has it"


def _supported(header: str, part: str, *rows: tuple[str, str] | tuple[str, str, str]) -> list[Call]:
    return [
        Call(
            name=row[0],
            header=header,
            part=part,
            status=Status.SUPPORTED,
            python=row[1],
            remark=row[2] if len(row) == 3 else "",
        )
        for row in rows
    ]


def _without(status: Status, header: str, part: str, prefix: str, names: str, remark: str = "") -> list[Call]:
    return [
        Call(name=prefix + name, header=header, part=part, status=status, remark=remark)
        for name in names.split()
    ]


def _refused(header: str, part: str, prefix: str, names: str, remark: str = "") -> list[Call]:
    return _without(Status.REFUSED, header, part, prefix, names, remark)


def _absent(header: str, part: str, prefix: str, names: str, remark: str = "") -> list[Call]:
    return _without(Status.ABSENT, header, part, prefix, names, remark)


_DRIVERS = [
    *_supported(
        _CORE,
        "Driver",
        ("zeInit", "Driver.open", "connects to the daemon, and starts one when there is none"),
        ("zeInitDrivers", "Driver.open"),
        ("zeDriverGet", "Driver.open", "one driver; each call is a session of its own"),
        ("zeDriverGetApiVersion", "Driver.get_api_version", "1.15"),
        ("zeDriverGetProperties", "Driver.get_properties"),
        ("zeDriverGetIpcProperties", "Driver.get_ipc_properties", "no IPC handles"),
        ("zeDriverGetExtensionProperties", "Driver.get_extension_properties"),
        (
            "zeDriverGetExtensionFunctionAddress",
            "Driver.get_extension_function_address",
            "the names of the functions in table order, not addresses",
        ),
        (
            "zeDriverGetLastErrorDescription",
            "Driver.get_last_error_description",
            "of the calling thread; `ZeError` says the same",
        ),
    ),
    *_absent(
        _CORE,
        "Driver",
        "zeDriver",
        "GetDefaultContext RTASFormatCompatibilityCheckExt RTASFormatCompatibilityCheckExp",
    ),
]

_DEVICES = [
    *_supported(
        _CORE,
        "Device",
        ("zeDeviceGet", "Driver.devices"),
        ("zeDeviceGetSubDevices", "Device.get_sub_devices", "none"),
        ("zeDeviceGetProperties", "Device.get_properties", "values of the chosen platform"),
        ("zeDeviceGetComputeProperties", "Device.get_compute_properties", "zeros"),
        ("zeDeviceGetImageProperties", "Device.get_image_properties", "zeros"),
        ("zeDeviceGetMemoryProperties", "Device.get_memory_properties", "one memory, DDR"),
        (
            "zeDeviceGetExternalMemoryProperties",
            "Device.get_external_memory_properties",
            "DMA_BUF stands for the descriptor of a memory file",
        ),
        ("zeDeviceGetMemoryAccessProperties", "Device.get_memory_access_properties"),
        ("zeDeviceGetP2PProperties", "Device.get_p2p_properties", "no flags"),
        (
            "zeDeviceGetCommandQueueGroupProperties",
            "Device.get_command_queue_group_properties",
            "one group that computes and copies",
        ),
        ("zeDeviceGetStatus", "Device.get_status", "with the counters of the engine"),
        ("zeDeviceGetGlobalTimestamps", "Device.get_global_timestamps", "host in ns, device in ticks"),
        ("zeDevicePciGetPropertiesExt", "Device.pci_get_properties_ext", "the bus number is the index"),
    ),
    *_refused(_CORE, "Device", "zeDevice", "GetModuleProperties GetCacheProperties CanAccessPeer"),
    *_absent(
        _CORE,
        "Device",
        "zeDevice",
        "GetRootDevice ReserveCacheExt SetCacheAdviceExt ImportExternalSemaphoreExt "
        "ReleaseExternalSemaphoreExt GetVectorWidthPropertiesExt Synchronize "
        "GetAggregatedCopyOffloadIncrementValue GetFabricVertexExp",
    ),
]

_CONTEXTS = [
    *_supported(
        _CORE,
        "Context",
        ("zeContextCreate", "Device.create_context"),
        ("zeContextDestroy", "Context.destroy", "ends everything that was created in it"),
        ("zeContextGetStatus", "Context.get_status"),
    ),
    *_refused(
        _CORE,
        "Context",
        "zeContext",
        "SystemBarrier MakeMemoryResident EvictMemory MakeImageResident EvictImage",
    ),
    *_absent(_CORE, "Context", "zeContext", "CreateEx"),
]

_MEMORY = [
    *_supported(
        _CORE,
        "Memory",
        (
            "zeMemAllocHost",
            "Context.alloc_host",
            "`export=`: the export descriptor; `Context.import_memory`: the import descriptor",
        ),
        ("zeMemAllocDevice", "Context.alloc_device", "visible to the host, as on the real device"),
        ("zeMemAllocShared", "Context.alloc_shared"),
        ("zeMemFree", "Context.free", "`Allocation.destroy` does the same"),
        (
            "zeMemGetAllocProperties",
            "Context.get_alloc_properties",
            "`Context.export_memory`: with the export descriptor",
        ),
        ("zeMemGetAddressRange", "Context.get_address_range", "the base is the address on the device"),
    ),
    *_refused(_CORE, "Memory", "zeMem", "GetIpcHandle OpenIpcHandle CloseIpcHandle PutIpcHandle"),
    *_absent(
        _CORE,
        "Memory",
        "zeMem",
        "FreeExt GetPitchFor2dImage GetIpcHandleWithProperties GetIpcHandleFromFileDescriptorExp "
        "GetFileDescriptorFromIpcHandleExp SetAtomicAccessAttributeExp GetAtomicAccessAttributeExp",
    ),
    *_refused(_CORE, "Memory", "zePhysicalMem", "Create Destroy"),
    *_absent(_CORE, "Memory", "zePhysicalMem", "GetProperties"),
    *_refused(
        _CORE,
        "Memory",
        "zeVirtualMem",
        "Reserve Free QueryPageSize Map Unmap SetAccessAttribute GetAccessAttribute",
    ),
]

_QUEUES = [
    *_supported(
        _CORE,
        "Command queue",
        (
            "zeCommandQueueCreate",
            "Context.create_command_queue",
            "priority, mode, turbo and DEVICE_SYNC are keywords; `slots` bounds the submissions in flight",
        ),
        ("zeCommandQueueDestroy", "CommandQueue.destroy", "waits for what the engine is running"),
        (
            "zeCommandQueueExecuteCommandLists",
            "CommandQueue.execute_command_lists",
            "the fence has the first failure of all lists; with empty lists alone it is signalled at once",
        ),
        (
            "zeCommandQueueSynchronize",
            "CommandQueue.synchronize",
            "True for SUCCESS, False for NOT_READY; raises the oldest failure that nobody was told of",
        ),
    ),
    *_absent(_CORE, "Command queue", "zeCommandQueue", "GetOrdinal GetIndex"),
]

_LISTS = [
    *_supported(
        _CORE,
        "Command list",
        ("zeCommandListCreate", "Context.create_command_list", "mutable and in-order are keywords"),
        ("zeCommandListCreateImmediate", "Context.create_command_list_immediate"),
        ("zeCommandListDestroy", "CommandList.destroy"),
        ("zeCommandListClose", "CommandList.close"),
        ("zeCommandListReset", "CommandList.reset"),
        ("zeCommandListIsImmediate", "CommandList.is_immediate"),
        ("zeCommandListHostSynchronize", "CommandList.host_synchronize", "for immediate lists"),
        ("zeCommandListAppendBarrier", "CommandList.append_barrier"),
        ("zeCommandListAppendMemoryCopy", "CommandList.append_memory_copy", "ranges may overlap"),
        (
            "zeCommandListAppendMemoryCopyRegion",
            "CommandList.append_memory_copy_region",
            "two dimensions; UNSUPPORTED_FEATURE for a third",
        ),
        ("zeCommandListAppendMemoryFill", "CommandList.append_memory_fill", "patterns of 1, 2 and 4 bytes"),
        ("zeCommandListAppendWriteGlobalTimestamp", "CommandList.append_write_global_timestamp"),
        ("zeCommandListAppendSignalEvent", "CommandList.append_signal_event"),
        ("zeCommandListAppendWaitOnEvents", "CommandList.append_wait_on_events"),
        ("zeCommandListAppendEventReset", "CommandList.append_event_reset"),
        (
            "zeCommandListGetNextCommandIdExp",
            "CommandListMutable.get_next_command_id",
            "GRAPH_ARGUMENTS only",
        ),
        ("zeCommandListUpdateMutableCommandsExp", "CommandListMutable.update_mutable_commands"),
    ),
    *_refused(
        _CORE,
        "Command list",
        "zeCommandList",
        "ImmediateGetIndex AppendMemoryRangesBarrier AppendMemoryCopyFromContext AppendMemoryPrefetch "
        "AppendMemAdvise AppendQueryKernelTimestamps AppendImageCopy AppendImageCopyRegion "
        "AppendImageCopyToMemory AppendImageCopyFromMemory",
    ),
    *_absent(
        _CORE,
        "Command list",
        "zeCommandList",
        "GetDeviceHandle GetContextHandle GetOrdinal AppendLaunchKernel AppendLaunchCooperativeKernel "
        "AppendLaunchKernelIndirect AppendLaunchMultipleKernelsIndirect AppendLaunchKernelWithParameters "
        "AppendLaunchKernelWithArguments AppendImageCopyToMemoryExt AppendImageCopyFromMemoryExt "
        "AppendSignalExternalSemaphoreExt AppendWaitExternalSemaphoreExt CreateCloneExp "
        "ImmediateAppendCommandListsExp UpdateMutableCommandSignalEventExp UpdateMutableCommandWaitEventsExp "
        "GetNextCommandIdWithKernelsExp UpdateMutableCommandKernelsExp",
    ),
]

_SIGNALS = [
    *_supported(
        _CORE,
        "Fence",
        ("zeFenceCreate", "CommandQueue.create_fence"),
        ("zeFenceDestroy", "Fence.destroy"),
        ("zeFenceHostSynchronize", "Fence.host_synchronize", "True for SUCCESS, False for NOT_READY"),
        ("zeFenceQueryStatus", "Fence.query_status", "True for SUCCESS, False for NOT_READY"),
        ("zeFenceReset", "Fence.reset"),
    ),
    *_supported(
        _CORE,
        "Event",
        ("zeEventPoolCreate", "Context.create_event_pool"),
        ("zeEventPoolDestroy", "EventPool.destroy"),
        ("zeEventCreate", "EventPool.create_event", "`Context.create_event` makes a pool of one as well"),
        ("zeEventDestroy", "Event.destroy"),
        ("zeEventHostSignal", "Event.host_signal"),
        ("zeEventHostReset", "Event.host_reset"),
        ("zeEventQueryStatus", "Event.query_status", "True for SUCCESS, False for NOT_READY"),
        (
            "zeEventHostSynchronize",
            "Event.host_synchronize",
            "NOT_READY at once when no command in flight signals the event",
        ),
    ),
    *_refused(_CORE, "Event", "zeEventPool", "GetIpcHandle OpenIpcHandle CloseIpcHandle PutIpcHandle"),
    *_refused(_CORE, "Event", "zeEvent", "QueryKernelTimestamp"),
    *_absent(_CORE, "Event", "zeEventPool", "GetContextHandle GetFlags"),
    *_absent(
        _CORE,
        "Event",
        "zeEvent",
        "QueryKernelTimestampsExt QueryTimestampsExp GetEventPool GetSignalScope GetWaitScope "
        "CounterBasedCreate CounterBasedGetIpcHandle CounterBasedOpenIpcHandle CounterBasedCloseIpcHandle "
        "CounterBasedGetDeviceAddress",
    ),
]

_NOT_FOR_AN_NPU = [
    *_absent(
        _CORE,
        "Modules and kernels",
        "zeModule",
        "Create Destroy DynamicLink GetNativeBinary GetGlobalPointer GetKernelNames GetProperties "
        "GetFunctionPointer InspectLinkageExt BuildLogDestroy BuildLogGetString",
    ),
    *_absent(
        _CORE,
        "Modules and kernels",
        "zeKernel",
        "Create Destroy SetCacheConfig SetGroupSize SuggestGroupSize SuggestMaxCooperativeGroupCount "
        "SetArgumentValue SetIndirectAccess GetIndirectAccess GetSourceAttributes GetProperties GetName "
        "SetGlobalOffsetExp SchedulingHintExp GetBinaryExp GetAllocationPropertiesExp",
    ),
    *_absent(
        _CORE,
        "Images and samplers",
        "zeImage",
        "GetProperties Create Destroy GetAllocPropertiesExt ViewCreateExt GetMemoryPropertiesExp "
        "ViewCreateExp GetDeviceOffsetExp",
    ),
    *_absent(_CORE, "Images and samplers", "zeSampler", "Create Destroy"),
    *_absent(
        _CORE,
        "Ray tracing and fabric",
        "zeRTAS",
        "BuilderCreateExt BuilderGetBuildPropertiesExt BuilderBuildExt BuilderCommandListAppendCopyExt "
        "BuilderDestroyExt ParallelOperationCreateExt ParallelOperationGetPropertiesExt "
        "ParallelOperationJoinExt ParallelOperationDestroyExt BuilderCreateExp "
        "BuilderGetBuildPropertiesExp BuilderBuildExp BuilderDestroyExp ParallelOperationCreateExp "
        "ParallelOperationGetPropertiesExp ParallelOperationJoinExp ParallelOperationDestroyExp",
    ),
    *_absent(
        _CORE,
        "Ray tracing and fabric",
        "zeFabric",
        "VertexGetExp VertexGetSubVerticesExp VertexGetPropertiesExp VertexGetDeviceExp EdgeGetExp "
        "EdgeGetVerticesExp EdgeGetPropertiesExp",
    ),
]

_SYSMAN_CALLS = [
    *_supported(
        _SYSMAN,
        "Sysman",
        ("zesInit", "Driver.open"),
        ("zesDriverGet", "Driver.open"),
        ("zesDeviceGet", "Device.sysman"),
        ("zesDeviceGetProperties", "Sysman.get_properties"),
        ("zesDeviceEnumEngineGroups", "Sysman.enum_engine_groups", "one, COMPUTE_ALL; the group is its type"),
        ("zesEngineGetActivity", "Sysman.engine_get_activity", "since the daemon started, in microseconds"),
    ),
    *_refused(_SYSMAN, "Sysman", "zesDevice", "EnumPowerDomains EnumFrequencyDomains"),
]

_TOOLS_CALLS = [
    *_absent(
        _TOOLS,
        "Metrics",
        "zet",
        "MetricGroupGet MetricGroupGetProperties MetricGroupCalculateMetricValues MetricGet "
        "MetricGetProperties ContextActivateMetricGroups MetricQueryPoolCreate MetricQueryPoolDestroy "
        "MetricQueryCreate MetricQueryDestroy MetricQueryReset MetricQueryGetData "
        "CommandListAppendMetricQueryBegin CommandListAppendMetricQueryEnd MetricStreamerOpen "
        "MetricStreamerClose MetricStreamerReadData",
        "not yet; in Intel's driver with ZET_ENABLE_METRICS=1 only",
    ),
    *_refused(_TOOLS, "Metrics", "zetCommandListAppend", "MetricStreamerMarker MetricMemoryBarrier"),
]

_GRAPH_CALLS = _supported(
    _GRAPH,
    "Graph extension 1.16",
    ("pfnCreate", "GraphExtension.create"),
    ("pfnDestroy", "Graph.destroy"),
    ("pfnGetProperties", "Graph.get_properties", "answers as version 3"),
    ("pfnGetArgumentProperties", "Graph.get_argument_properties", "answers as version 3"),
    ("pfnSetArgumentValue", "Graph.set_argument_value", "INVALID_ARGUMENT also for too few bytes"),
    ("pfnAppendGraphInitialize", "CommandList.append_graph_initialize", "harmless when repeated"),
    ("pfnAppendGraphExecute", "CommandList.append_graph_execute", "takes the arguments of this moment"),
    ("pfnGetNativeBinary", "Graph.get_native_binary", "a copy"),
    ("pfnDeviceGetGraphProperties", "GraphExtension.device_get_graph_properties", "answers as version 2"),
    ("pfnGraphGetArgumentMetadata", "Graph.get_argument_metadata"),
    ("pfnGetArgumentProperties2", "Graph.get_argument_properties", "answers as version 3"),
    ("pfnGetArgumentProperties3", "Graph.get_argument_properties"),
    ("pfnQueryNetworkCreate", "GraphExtension.query_network_create"),
    ("pfnQueryNetworkDestroy", "QueryNetwork.destroy"),
    ("pfnQueryNetworkGetSupportedLayers", "QueryNetwork.get_supported_layers"),
    ("pfnBuildLogGetString", "GraphExtension.build_log_get_string", "the last failure of this thread"),
    (
        "pfnCreate2",
        "GraphExtension.create2",
        "`Context.create_graph` takes files, configuration and shapes in place of a descriptor",
    ),
    ("pfnQueryNetworkCreate2", "GraphExtension.query_network_create"),
    ("pfnQueryContextMemory", "GraphExtension.query_context_memory", "in bytes; programs are not cached"),
    ("pfnDeviceGetGraphProperties2", "GraphExtension.device_get_graph_properties"),
    ("pfnGetNativeBinary2", "Graph.get_native_binary2", "without a copy; as long as the graph lives"),
    ("pfnGetProperties2", "Graph.get_properties", "answers as version 3"),
    ("pfnGraphInitialize", "Graph.initialize", "one image on the device serves all processes"),
    ("pfnCompilerGetSupportedOptions", "GraphExtension.compiler_get_supported_options"),
    (
        "pfnCompilerIsOptionSupported",
        "GraphExtension.compiler_is_option_supported",
        "returns if it is, raises UNSUPPORTED_FEATURE if it is not",
    ),
    ("pfnCreate3", "GraphExtension.create3"),
    ("pfnGetProperties3", "Graph.get_properties"),
    ("pfnBuildLogGetString2", "BuildLog.get_string"),
    ("pfnBuildLogDestroy", "BuildLog.destroy"),
    ("pfnSetArgumentValue2", "Graph.set_argument_value2", "strides in elements, innermost first"),
    ("pfnEvict", "Graph.evict", "without effect"),
)

_OTHER_EXTENSIONS = [
    *_supported(
        _PROFILING,
        "Profiling extension",
        ("pfnProfilingPoolCreate", "ProfilingPool"),
        ("pfnProfilingPoolDestroy", "ProfilingPool.destroy"),
        ("pfnProfilingQueryCreate", "ProfilingPool.create_query"),
        ("pfnProfilingQueryDestroy", "ProfilingQuery.destroy"),
        (
            "pfnProfilingQueryGetData",
            "ProfilingQuery.get_data",
            "`ProfilingQuery.layers` and `ProfilingQuery.tasks` give the same as records",
        ),
        ("pfnDeviceGetProfilingDataProperties", "Device.get_profiling_data_properties"),
    ),
    *_supported(
        _PROFILING,
        "Profiling extension",
        ("pfnProfilingLogGetString", "ProfilingQuery.log_get_string", "decoding leaves no log"),
    ),
    *_supported(
        _QUEUE,
        "Command queue extension",
        ("pfnSetWorkloadType", "CommandQueue.set_workload_type", "background runs below every priority"),
    ),
    *_supported(
        _CONTEXT,
        "Context extension",
        ("pfnSetProperties", "Context.set_properties", "there is no idle pruning to opt out of"),
        ("pfnReleaseMemory", "Context.release_memory"),
    ),
    *_supported(_DRIVER, "Driver extension", ("pfnGetExtension", "Driver.get_extension")),
    *_absent(
        _DRIVER,
        "Device extension",
        "pfn",
        "GetRuntimeRequirements GetRuntimeRequirementsKey ValidateRuntimeRequirements",
    ),
]

CALLS: tuple[Call, ...] = (
    *_DRIVERS,
    *_DEVICES,
    *_CONTEXTS,
    *_MEMORY,
    *_QUEUES,
    *_LISTS,
    *_SIGNALS,
    *_NOT_FOR_AN_NPU,
    *_SYSMAN_CALLS,
    *_TOOLS_CALLS,
    *_GRAPH_CALLS,
    *_OTHER_EXTENSIONS,
)
"""All functions, by header and part."""
