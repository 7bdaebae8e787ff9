// Devices: their properties, and sysman.
#include <cmath>
#include <cstring>

#include "base/clock.hpp"
#include "entry/calls.hpp"
#include "session/driver.hpp"

using namespace softnpu;

namespace {

constexpr uint32_t FILL_PATTERN = 4;
constexpr uint32_t PCI_DEVICE = 0x0b;  // where the NPU sits on the real platforms, 0000:00:0b.0

// Zeroes a structure of properties, all of it but `stype` and `pNext`.
template <class T>
void clear_body(T& properties) {
    const ze_base_properties_t head{properties.stype, properties.pNext};
    std::memset(&properties, 0, sizeof properties);
    properties.stype = head.stype;
    properties.pNext = head.pNext;
}

}  // namespace

namespace softnpu {

void fill_properties(const DeviceInfo& info, ze_device_properties_t& out) {
    const uint32_t stype = out.stype;
    clear_body(out);
    out.type = ZE_DEVICE_TYPE_VPU;
    out.vendorId = 0x8086;
    out.deviceId = info.device_id;
    out.flags = ZE_DEVICE_PROPERTY_FLAG_INTEGRATED;
    out.subdeviceId = info.revision;
    out.coreClockRate = info.core_clock_mhz * 1'000'000;  // in Hz, as the real driver
    out.maxMemAllocSize = info.memory_total;
    out.maxHardwareContexts = 64;
    out.maxCommandQueuePriority = 2;
    out.numThreadsPerEU = 1;
    out.physicalEUSimdWidth = info.simd_width;
    out.numEUsPerSubslice = info.eus_per_subslice;
    out.numSubslicesPerSlice = 1;
    out.numSlices = info.slices;
    // the newer structure counts cycles a second, the older one nanoseconds a tick
    out.timerResolution = stype == ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2
                              ? static_cast<uint64_t>(std::llround(1e9 / info.timer_ns_per_tick))
                              : static_cast<uint64_t>(info.timer_ns_per_tick);
    out.timestampValidBits = 64;
    out.kernelTimestampValidBits = 64;
    std::memcpy(out.uuid, info.uuid.data(), std::min(info.uuid.size(), sizeof out.uuid));
    copy_text(out.name, info.name);
}

}  // namespace softnpu

namespace {

void fill_chain(void* next) {
    for (auto& link : ze_chain(next)) {
        if (link.stype == ZE_STRUCTURE_TYPE_DEVICE_IP_VERSION_EXT) {
            // type of the platform: 0 is silicon, which this device claims to be
            static_cast<ze_device_ip_version_ext_t&>(link).ipVersion = 0;
        } else if (link.stype == ZE_STRUCTURE_TYPE_MUTABLE_COMMAND_LIST_EXP_PROPERTIES) {
            auto& out = static_cast<ze_mutable_command_list_exp_properties_t&>(link);
            out.mutableCommandListFlags = 0;
            out.mutableCommandFlags = ZE_MUTABLE_COMMAND_EXP_FLAG_GRAPH_ARGUMENT_DEPRECATED |
                                      ZE_MUTABLE_COMMAND_EXP_FLAG_GRAPH_ARGUMENTS;
        } else {
            throw invalid_argument("device properties", format("structure type %#x in pNext", link.stype),
                                   "the IP version or the mutable command list properties");
        }
    }
}

}  // namespace

ZE_EXPORT ze_result_t zeDeviceGet(ze_driver_handle_t hDriver, uint32_t* pCount,
                                  ze_device_handle_t* phDevices) {
    return guarded(__func__, [&] {
        const auto driver = lookup<Driver>(hDriver);
        const auto& handles = driver->device_handles;
        return write_handles(pCount, phDevices, "phDevices", handles.size(),
                             [&](uint32_t index, ze_device_handle_t& out) {
                                 out = reinterpret_cast<ze_device_handle_t>(handles[index]);
                             });
    });
}

ZE_EXPORT ze_result_t zeDeviceGetSubDevices(ze_device_handle_t hDevice, uint32_t* pCount,
                                            ze_device_handle_t*) {
    return guarded(__func__, [&] {
        lookup<Device>(hDevice);
        require_nonnull(pCount, "pCount");
        *pCount = 0;
    });
}

ZE_EXPORT ze_result_t zeDeviceGetProperties(ze_device_handle_t hDevice, ze_device_properties_t* pProperties) {
    return guarded(__func__, [&] {
        const auto device = lookup<Device>(hDevice);
        require_nonnull(pProperties, "pDeviceProperties");
        fill_chain(pProperties->pNext);
        fill_properties(device->info, *pProperties);
    });
}

ZE_EXPORT ze_result_t zeDeviceGetComputeProperties(ze_device_handle_t hDevice,
                                                   ze_device_compute_properties_t* pProperties) {
    return guarded(__func__, [&] {
        lookup<Device>(hDevice);
        require_nonnull(pProperties, "pComputeProperties");
        clear_body(*pProperties);  // an NPU runs no kernels of the user
    });
}

ZE_EXPORT ze_result_t zeDeviceGetImageProperties(ze_device_handle_t hDevice,
                                                 ze_device_image_properties_t* pProperties) {
    return guarded(__func__, [&] {
        lookup<Device>(hDevice);
        require_nonnull(pProperties, "pImageProperties");
        clear_body(*pProperties);
    });
}

ZE_EXPORT ze_result_t zeDeviceGetMemoryProperties(ze_device_handle_t hDevice, uint32_t* pCount,
                                                  ze_device_memory_properties_t* pProperties) {
    return guarded(__func__, [&] {
        lookup<Device>(hDevice);
        return write_array(pCount, pProperties, 1, [&](uint32_t, ze_device_memory_properties_t& out) {
            clear_body(out);
            copy_text(out.name, "DDR");
        });
    });
}

ZE_EXPORT ze_result_t zeDeviceGetMemoryAccessProperties(ze_device_handle_t hDevice,
                                                        ze_device_memory_access_properties_t* pProperties) {
    return guarded(__func__, [&] {
        lookup<Device>(hDevice);
        require_nonnull(pProperties, "pMemAccessProperties");
        clear_body(*pProperties);
        pProperties->hostAllocCapabilities = ZE_MEMORY_ACCESS_CAP_FLAG_RW | ZE_MEMORY_ACCESS_CAP_FLAG_ATOMIC;
        pProperties->deviceAllocCapabilities =
            ZE_MEMORY_ACCESS_CAP_FLAG_RW | ZE_MEMORY_ACCESS_CAP_FLAG_ATOMIC;
    });
}

ZE_EXPORT ze_result_t zeDeviceGetExternalMemoryProperties(
    ze_device_handle_t hDevice, ze_device_external_memory_properties_t* pProperties) {
    return guarded(__func__, [&] {
        lookup<Device>(hDevice);
        require_nonnull(pProperties, "pExternalMemoryProperties");
        clear_body(*pProperties);
        pProperties->memoryAllocationImportTypes =
            ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF | ZE_EXTERNAL_MEMORY_TYPE_FLAG_STANDARD_ALLOCATION;
        pProperties->memoryAllocationExportTypes = ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF;
    });
}

ZE_EXPORT ze_result_t zeDeviceGetP2PProperties(ze_device_handle_t hDevice, ze_device_handle_t hPeerDevice,
                                               ze_device_p2p_properties_t* pProperties) {
    return guarded(__func__, [&] {
        lookup<Device>(hDevice);
        lookup<Device>(hPeerDevice);
        require_nonnull(pProperties, "pP2PProperties");
        pProperties->flags = 0;
    });
}

ZE_EXPORT ze_result_t zeDeviceGetCommandQueueGroupProperties(
    ze_device_handle_t hDevice, uint32_t* pCount, ze_command_queue_group_properties_t* pProperties) {
    return guarded(__func__, [&] {
        lookup<Device>(hDevice);
        return write_array(pCount, pProperties, 1, [&](uint32_t, ze_command_queue_group_properties_t& out) {
            out.flags =
                ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE | ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY;
            out.maxMemoryFillPatternSize = FILL_PATTERN;
            out.numQueues = 1;
        });
    });
}

ZE_EXPORT ze_result_t zeDeviceGetStatus(ze_device_handle_t hDevice) {
    // DEVICE_LOST without a daemon
    return guarded(__func__, [&] { lookup<Device>(hDevice)->busy_ns(); });
}

ZE_EXPORT ze_result_t zeDeviceGetGlobalTimestamps(ze_device_handle_t hDevice, uint64_t* hostTimestamp,
                                                  uint64_t* deviceTimestamp) {
    return guarded(__func__, [&] {
        const auto device = lookup<Device>(hDevice);
        require_nonnull(hostTimestamp, "hostTimestamp");
        require_nonnull(deviceTimestamp, "deviceTimestamp");
        const uint64_t modelled = device->modelled_clock_ns();  // DEVICE_LOST without a daemon
        const uint64_t now = now_ns();
        const double clock = static_cast<double>(device->info.has_modelled_clock ? modelled : now);
        *hostTimestamp = now;
        *deviceTimestamp = static_cast<uint64_t>(clock / device->info.timer_ns_per_tick);
    });
}

ZE_EXPORT ze_result_t zeDevicePciGetPropertiesExt(ze_device_handle_t hDevice,
                                                  ze_pci_ext_properties_t* pProperties) {
    return guarded(__func__, [&] {
        const auto device = lookup<Device>(hDevice);
        require_nonnull(pProperties, "pPciProperties");
        clear_body(*pProperties);
        pProperties->bus = device->info.index;
        pProperties->device = PCI_DEVICE;
        // -1: unknown
        pProperties->genVersion = -1;
        pProperties->width = -1;
        pProperties->maxBandwidth = -1;
    });
}

// ---------------------------------------------------------------- sysman

namespace {

constexpr const char* DRIVER_VERSION = "npu-linux-driver-softnpu-0.1";

// The one engine group of a device.
class Engine : public Object {
public:
    static constexpr Kind KIND = Kind::engine;
    explicit Engine(std::shared_ptr<Device> device) : Object(device), device(std::move(device)) {}
    const std::shared_ptr<Device> device;
};

}  // namespace

ZE_EXPORT ze_result_t zesInit(uint32_t) { return zeInit(0); }

ZE_EXPORT ze_result_t zesDriverGet(uint32_t* pCount, zes_driver_handle_t* phDrivers) {
    return zeDriverGet(pCount, phDrivers);
}

ZE_EXPORT ze_result_t zesDeviceGet(zes_driver_handle_t hDriver, uint32_t* pCount,
                                   zes_device_handle_t* phDevices) {
    return zeDeviceGet(hDriver, pCount, phDevices);
}

ZE_EXPORT ze_result_t zesDeviceGetProperties(zes_device_handle_t hDevice,
                                             zes_device_properties_t* pProperties) {
    return guarded(__func__, [&] {
        const auto device = lookup<Device>(hDevice);
        require_nonnull(pProperties, "pProperties");
        pProperties->core.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES;
        fill_properties(device->info, pProperties->core);
        pProperties->numSubdevices = 0;
        copy_text(pProperties->serialNumber, "unknown");
        copy_text(pProperties->boardNumber, "unknown");
        copy_text(pProperties->brandName, "NPU");
        copy_text(pProperties->modelName, device->info.name);
        copy_text(pProperties->vendorName, "INTEL");
        copy_text(pProperties->driverVersion, DRIVER_VERSION);
    });
}

ZE_EXPORT ze_result_t zesDeviceEnumEngineGroups(zes_device_handle_t hDevice, uint32_t* pCount,
                                                zes_engine_handle_t* phEngine) {
    return guarded(__func__, [&] {
        const auto device = lookup<Device>(hDevice);
        return write_array(pCount, phEngine, 1, [&](uint32_t, zes_engine_handle_t& out) {
            out = reinterpret_cast<zes_engine_handle_t>(device->engine_handle(
                [&] { return runtime().handles.add(Kind::engine, std::make_shared<Engine>(device)); }));
        });
    });
}

ZE_EXPORT ze_result_t zesEngineGetProperties(zes_engine_handle_t hEngine,
                                             zes_engine_properties_t* pProperties) {
    return guarded(__func__, [&] {
        lookup<Engine>(hEngine);
        require_nonnull(pProperties, "pProperties");
        pProperties->type = ZES_ENGINE_GROUP_COMPUTE_ALL;
        pProperties->onSubdevice = 0;
        pProperties->subdeviceId = 0;
    });
}

ZE_EXPORT ze_result_t zesEngineGetActivity(zes_engine_handle_t hEngine, zes_engine_stats_t* pStats) {
    return guarded(__func__, [&] {
        const auto engine = lookup<Engine>(hEngine);
        require_nonnull(pStats, "pStats");
        pStats->activeTime = engine->device->busy_ns() / 1000;
        pStats->timestamp = now_ns() / 1000;
    });
}
