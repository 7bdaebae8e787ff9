// What concerns the loader: the tables of this driver's functions, and what an NPU does not have.
#include <cstdint>

#include "entry/calls.hpp"

using namespace softnpu;

// ---------------------------------------------------------------- functions that the device does not have
//
// They exist, and return UNSUPPORTED_FEATURE.

// One function for all: it reads no argument.
extern "C" ze_result_t softnpu_unsupported() {
    return guarded("function", []() -> ze_result_t {
        throw unsupported_feature("function", "an NPU does not have it",
                                  "a function of docs/level-zero.md that is supported");
    });
}

#define UNSUPPORTED(name) \
    extern "C" __attribute__((visibility("default"), alias("softnpu_unsupported"))) ze_result_t name();
#define TRACED(name) UNSUPPORTED(zelTracer##name##RegisterCallback)
#include "entry/traced.inc"
#include "entry/unsupported.inc"
#undef TRACED
#undef UNSUPPORTED

// ---------------------------------------------------------------- tables
//
// The getters through which the official loader finds this driver's functions. An older loader has a shorter
// table, so each entry has the version of the API that added it. Entries of functions that an NPU does not
// have stay as the loader made them.

namespace {

using Function = void (*)();

struct Entry {
    Function function;
    uint32_t minor;  // of the version 1.x that added it
};

template <class F>
Entry entry(F* function, uint32_t minor = 0) {
    return {reinterpret_cast<Function>(function), minor};
}

constexpr Entry absent(uint32_t minor = 0) { return {nullptr, minor}; }

template <size_t N>
ze_result_t fill(const char* call, uint32_t version, void* table, const Entry (&entries)[N]) {
    return guarded(call, [&] {
        require_nonnull(table, "pDdiTable");
        if (version >> 16 != ZE_API_VERSION >> 16) {
            throw unsupported_version(call, format("version %u.%u", version >> 16, version & 0xffff),
                                      "version 1.x");
        }
        auto* const slots = static_cast<Function*>(table);
        for (size_t index = 0; index < N; ++index) {
            // an older table ends here, or has other functions from here on
            if (entries[index].minor > (version & 0xffff)) break;
            if (entries[index].function != nullptr) slots[index] = entries[index].function;
        }
    });
}

}  // namespace

#define TABLE(getter, ...)                                            \
    ZE_EXPORT ze_result_t getter(uint32_t version, void* pDdiTable) { \
        static const Entry entries[] = {__VA_ARGS__};                 \
        return fill(#getter, version, pDdiTable, entries);            \
    }

// A table without functions of an NPU.
#define EMPTY_TABLE(getter) TABLE(getter, absent())

TABLE(zeGetGlobalProcAddrTable, entry(zeInit), entry(zeInitDrivers, 10))

TABLE(zeGetDriverProcAddrTable, entry(zeDriverGet), entry(zeDriverGetApiVersion),
      entry(zeDriverGetProperties), entry(zeDriverGetIpcProperties), entry(zeDriverGetExtensionProperties),
      entry(zeDriverGetExtensionFunctionAddress, 1), entry(zeDriverGetLastErrorDescription, 6))

TABLE(zeGetDeviceProcAddrTable, entry(zeDeviceGet), entry(zeDeviceGetSubDevices),
      entry(zeDeviceGetProperties), entry(zeDeviceGetComputeProperties), entry(zeDeviceGetModuleProperties),
      entry(zeDeviceGetCommandQueueGroupProperties), entry(zeDeviceGetMemoryProperties),
      entry(zeDeviceGetMemoryAccessProperties), entry(zeDeviceGetCacheProperties),
      entry(zeDeviceGetImageProperties), entry(zeDeviceGetExternalMemoryProperties),
      entry(zeDeviceGetP2PProperties), entry(zeDeviceCanAccessPeer), entry(zeDeviceGetStatus),
      entry(zeDeviceGetGlobalTimestamps, 1), absent(2), absent(2), entry(zeDevicePciGetPropertiesExt, 3),
      absent(7), absent(12), absent(12), absent(13), absent(14), absent(15),
      entry(zeDeviceGetRuntimeRequirements, 16), entry(zeDeviceGetRuntimeRequirementsKey, 16),
      entry(zeDeviceValidateRuntimeRequirements, 16))

TABLE(zeGetContextProcAddrTable, entry(zeContextCreate), entry(zeContextDestroy), entry(zeContextGetStatus),
      entry(zeContextSystemBarrier), entry(zeContextMakeMemoryResident), entry(zeContextEvictMemory),
      entry(zeContextMakeImageResident), entry(zeContextEvictImage))

TABLE(zeGetCommandQueueProcAddrTable, entry(zeCommandQueueCreate), entry(zeCommandQueueDestroy),
      entry(zeCommandQueueExecuteCommandLists), entry(zeCommandQueueSynchronize))

TABLE(zeGetCommandListProcAddrTable, entry(zeCommandListCreate), entry(zeCommandListCreateImmediate),
      entry(zeCommandListDestroy), entry(zeCommandListClose), entry(zeCommandListReset),
      entry(zeCommandListAppendWriteGlobalTimestamp), entry(zeCommandListAppendBarrier),
      entry(zeCommandListAppendMemoryRangesBarrier), entry(zeCommandListAppendMemoryCopy),
      entry(zeCommandListAppendMemoryFill), entry(zeCommandListAppendMemoryCopyRegion),
      entry(zeCommandListAppendMemoryCopyFromContext), entry(zeCommandListAppendImageCopy),
      entry(zeCommandListAppendImageCopyRegion), entry(zeCommandListAppendImageCopyToMemory),
      entry(zeCommandListAppendImageCopyFromMemory), entry(zeCommandListAppendMemoryPrefetch),
      entry(zeCommandListAppendMemAdvise), entry(zeCommandListAppendSignalEvent),
      entry(zeCommandListAppendWaitOnEvents), entry(zeCommandListAppendEventReset),
      entry(zeCommandListAppendQueryKernelTimestamps), absent(), absent(), absent(), absent(), absent(3),
      absent(3), entry(zeCommandListHostSynchronize, 9), absent(9), absent(9), absent(9),
      entry(zeCommandListImmediateGetIndex, 9), entry(zeCommandListIsImmediate, 9))

TABLE(zeGetCommandListExpProcAddrTable, absent(9), absent(9), entry(zeCommandListGetNextCommandIdExp, 9),
      entry(zeCommandListUpdateMutableCommandsExp, 9))

TABLE(zeGetFenceProcAddrTable, entry(zeFenceCreate), entry(zeFenceDestroy), entry(zeFenceHostSynchronize),
      entry(zeFenceQueryStatus), entry(zeFenceReset))

TABLE(zeGetEventPoolProcAddrTable, entry(zeEventPoolCreate), entry(zeEventPoolDestroy),
      entry(zeEventPoolGetIpcHandle), entry(zeEventPoolOpenIpcHandle), entry(zeEventPoolCloseIpcHandle),
      entry(zeEventPoolPutIpcHandle, 6))

TABLE(zeGetEventProcAddrTable, entry(zeEventCreate), entry(zeEventDestroy), entry(zeEventHostSignal),
      entry(zeEventHostSynchronize), entry(zeEventQueryStatus), entry(zeEventHostReset),
      entry(zeEventQueryKernelTimestamp))

TABLE(zeGetMemProcAddrTable, entry(zeMemAllocShared), entry(zeMemAllocDevice), entry(zeMemAllocHost),
      entry(zeMemFree), entry(zeMemGetAllocProperties), entry(zeMemGetAddressRange), entry(zeMemGetIpcHandle),
      entry(zeMemOpenIpcHandle), entry(zeMemCloseIpcHandle), absent(3), entry(zeMemPutIpcHandle, 6))

TABLE(zeGetPhysicalMemProcAddrTable, entry(zePhysicalMemCreate), entry(zePhysicalMemDestroy))

TABLE(zeGetVirtualMemProcAddrTable, entry(zeVirtualMemReserve), entry(zeVirtualMemFree),
      entry(zeVirtualMemQueryPageSize), entry(zeVirtualMemMap), entry(zeVirtualMemUnmap),
      entry(zeVirtualMemSetAccessAttribute), entry(zeVirtualMemGetAccessAttribute))

EMPTY_TABLE(zeGetDeviceExpProcAddrTable)
EMPTY_TABLE(zeGetDriverExpProcAddrTable)
EMPTY_TABLE(zeGetEventExpProcAddrTable)
EMPTY_TABLE(zeGetMemExpProcAddrTable)
EMPTY_TABLE(zeGetImageProcAddrTable)
EMPTY_TABLE(zeGetImageExpProcAddrTable)
EMPTY_TABLE(zeGetModuleProcAddrTable)
EMPTY_TABLE(zeGetModuleBuildLogProcAddrTable)
EMPTY_TABLE(zeGetKernelProcAddrTable)
EMPTY_TABLE(zeGetKernelExpProcAddrTable)
EMPTY_TABLE(zeGetSamplerProcAddrTable)
EMPTY_TABLE(zeGetRTASBuilderProcAddrTable)
EMPTY_TABLE(zeGetRTASBuilderExpProcAddrTable)
EMPTY_TABLE(zeGetRTASParallelOperationProcAddrTable)
EMPTY_TABLE(zeGetRTASParallelOperationExpProcAddrTable)
EMPTY_TABLE(zeGetFabricVertexExpProcAddrTable)
EMPTY_TABLE(zeGetFabricEdgeExpProcAddrTable)
EMPTY_TABLE(zeGetGraphProcAddrTable)
EMPTY_TABLE(zeGetExecutableGraphProcAddrTable)

// ---------------------------------------------------------------- sysman

TABLE(zesGetGlobalProcAddrTable, entry(zesInit, 5))

TABLE(zesGetDriverProcAddrTable, entry(zesDriverEventListen), entry(zesDriverEventListenEx, 1),
      entry(zesDriverGet, 5))

TABLE(zesGetDeviceProcAddrTable, entry(zesDeviceGetProperties), entry(zesDeviceGetState),
      entry(zesDeviceReset), entry(zesDeviceProcessesGetState), entry(zesDevicePciGetProperties),
      entry(zesDevicePciGetState), entry(zesDevicePciGetBars), entry(zesDevicePciGetStats),
      entry(zesDeviceEnumDiagnosticTestSuites), entry(zesDeviceEnumEngineGroups),
      entry(zesDeviceEventRegister), entry(zesDeviceEnumFabricPorts), entry(zesDeviceEnumFans),
      entry(zesDeviceEnumFirmwares), entry(zesDeviceEnumFrequencyDomains), entry(zesDeviceEnumLeds),
      entry(zesDeviceEnumMemoryModules), entry(zesDeviceEnumPerformanceFactorDomains),
      entry(zesDeviceEnumPowerDomains), entry(zesDeviceGetCardPowerDomain, 3), entry(zesDeviceEnumPsus),
      entry(zesDeviceEnumRasErrorSets), entry(zesDeviceEnumSchedulers), entry(zesDeviceEnumStandbyDomains),
      entry(zesDeviceEnumTemperatureSensors), entry(zesDeviceEccAvailable, 4),
      entry(zesDeviceEccConfigurable, 4), entry(zesDeviceGetEccState, 4), entry(zesDeviceSetEccState, 4),
      entry(zesDeviceGet, 5))

TABLE(zesGetEngineProcAddrTable, entry(zesEngineGetProperties), entry(zesEngineGetActivity))

EMPTY_TABLE(zesGetDeviceExpProcAddrTable)
EMPTY_TABLE(zesGetDriverExpProcAddrTable)
EMPTY_TABLE(zesGetDiagnosticsProcAddrTable)
EMPTY_TABLE(zesGetFabricPortProcAddrTable)
EMPTY_TABLE(zesGetFanProcAddrTable)
EMPTY_TABLE(zesGetFirmwareProcAddrTable)
EMPTY_TABLE(zesGetFirmwareExpProcAddrTable)
EMPTY_TABLE(zesGetFrequencyProcAddrTable)
EMPTY_TABLE(zesGetLedProcAddrTable)
EMPTY_TABLE(zesGetMemoryProcAddrTable)
EMPTY_TABLE(zesGetOverclockProcAddrTable)
EMPTY_TABLE(zesGetPerformanceFactorProcAddrTable)
EMPTY_TABLE(zesGetPowerProcAddrTable)
EMPTY_TABLE(zesGetPsuProcAddrTable)
EMPTY_TABLE(zesGetRasProcAddrTable)
EMPTY_TABLE(zesGetRasExpProcAddrTable)
EMPTY_TABLE(zesGetSchedulerProcAddrTable)
EMPTY_TABLE(zesGetStandbyProcAddrTable)
EMPTY_TABLE(zesGetTemperatureProcAddrTable)
EMPTY_TABLE(zesGetVFManagementExpProcAddrTable)

// ---------------------------------------------------------------- tools

TABLE(zetGetCommandListProcAddrTable, entry(zetCommandListAppendMetricStreamerMarker),
      entry(zetCommandListAppendMetricQueryBegin), entry(zetCommandListAppendMetricQueryEnd),
      entry(zetCommandListAppendMetricMemoryBarrier))

TABLE(zetGetContextProcAddrTable, entry(zetContextActivateMetricGroups))

TABLE(zetGetMetricProcAddrTable, entry(zetMetricGet), entry(zetMetricGetProperties))

TABLE(zetGetMetricGroupProcAddrTable, entry(zetMetricGroupGet), entry(zetMetricGroupGetProperties),
      entry(zetMetricGroupCalculateMetricValues))

TABLE(zetGetMetricQueryProcAddrTable, entry(zetMetricQueryCreate), entry(zetMetricQueryDestroy),
      entry(zetMetricQueryReset), entry(zetMetricQueryGetData))

TABLE(zetGetMetricQueryPoolProcAddrTable, entry(zetMetricQueryPoolCreate), entry(zetMetricQueryPoolDestroy))

TABLE(zetGetMetricStreamerProcAddrTable, entry(zetMetricStreamerOpen), entry(zetMetricStreamerClose),
      entry(zetMetricStreamerReadData))

EMPTY_TABLE(zetGetDeviceProcAddrTable)
EMPTY_TABLE(zetGetDeviceExpProcAddrTable)
EMPTY_TABLE(zetGetDebugProcAddrTable)
EMPTY_TABLE(zetGetKernelProcAddrTable)
EMPTY_TABLE(zetGetMetricExpProcAddrTable)
EMPTY_TABLE(zetGetMetricDecoderExpProcAddrTable)
EMPTY_TABLE(zetGetMetricGroupExpProcAddrTable)
EMPTY_TABLE(zetGetMetricProgrammableExpProcAddrTable)
EMPTY_TABLE(zetGetMetricTracerExpProcAddrTable)
EMPTY_TABLE(zetGetCommandListExpProcAddrTable)
EMPTY_TABLE(zetGetModuleProcAddrTable)
EMPTY_TABLE(zetGetTracerExpProcAddrTable)

// ---------------------------------------------------------------- tracing layer of a loader

TABLE(zelGetTracerApiProcAddrTable, entry(zelTracerCreate), entry(zelTracerDestroy),
      entry(zelTracerSetPrologues), entry(zelTracerSetEpilogues), entry(zelTracerSetEnabled))
