#include "base/clock.hpp"
#include "base/output.hpp"
#include "entry/calls.hpp"
#include "session/driver.hpp"
#include "session/runtime.hpp"

using namespace softnpu;

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
