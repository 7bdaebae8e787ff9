// Initialisation and the driver.
#include <cstring>

#include "entry/calls.hpp"
#include "session/driver.hpp"

using namespace softnpu;

namespace {

constexpr uint8_t UUID[16] = {0x01, 0x7d, 0xe9, 0x31, 0x6b, 0x4d, 0x4f, 0xd4,
                              0xaa, 0x9b, 0x5b, 0xed, 0x77, 0xfc, 0x8e, 0x89};
// a time in seconds, as in the real driver: OpenVINO reports GOPS for drivers built since May 2024
constexpr uint32_t DRIVER_VERSION = 1'780'000'000;

// The handle of the driver; the reason of a failure goes to stderr.
uint64_t opened() {
    try {
        return open_driver();
    } catch (const Error& failure) {
        log_failure(failure);
        // DEVICE_LOST ends a session, and here there was none yet
        if (failure.result() != ZE_RESULT_ERROR_DEVICE_LOST) throw;
        ErrorInfo info = failure.info();
        info.result = ZE_RESULT_ERROR_UNINITIALIZED;
        throw Error(info);
    }
}

void check_flags(uint32_t flags) {
    if (flags == 0 || (flags & ZE_INIT_FLAG_VPU_ONLY) != 0) return;
    throw uninitialized("drivers", format("flags %#x", flags),
                        format("0, or the flag of an NPU (%#x)", ZE_INIT_FLAG_VPU_ONLY));
}

void write_driver(uint32_t* count, ze_driver_handle_t* drivers) {
    require_nonnull(count, "pCount");
    const uint64_t handle = opened();
    return write_handles(count, drivers, "phDrivers", 1, [&](uint32_t, ze_driver_handle_t& out) {
        out = reinterpret_cast<ze_driver_handle_t>(handle);
    });
}

}  // namespace

ZE_EXPORT ze_result_t zeInit(uint32_t flags) {
    return guarded(__func__, [&] {
        check_flags(flags);
        opened();
    });
}

ZE_EXPORT ze_result_t zeInitDrivers(uint32_t* pCount, ze_driver_handle_t* phDrivers,
                                    ze_init_driver_type_desc_t* desc) {
    return guarded(__func__, [&] {
        require_nonnull(pCount, "pCount");
        require_nonnull(desc, "desc");
        check_flags(desc->flags);
        return write_driver(pCount, phDrivers);
    });
}

ZE_EXPORT ze_result_t zeDriverGet(uint32_t* pCount, ze_driver_handle_t* phDrivers) {
    return guarded(__func__, [&] { return write_driver(pCount, phDrivers); });
}

ZE_EXPORT ze_result_t zeDriverGetApiVersion(ze_driver_handle_t hDriver, uint32_t* version) {
    return guarded(__func__, [&] {
        lookup<Driver>(hDriver);
        require_nonnull(version, "version");
        *version = ZE_API_VERSION;
    });
}

ZE_EXPORT ze_result_t zeDriverGetProperties(ze_driver_handle_t hDriver, ze_driver_properties_t* pProperties) {
    return guarded(__func__, [&] {
        lookup<Driver>(hDriver);
        require_nonnull(pProperties, "pDriverProperties");
        std::memcpy(pProperties->uuid, UUID, sizeof UUID);
        pProperties->driverVersion = DRIVER_VERSION;
    });
}

ZE_EXPORT ze_result_t zeDriverGetIpcProperties(ze_driver_handle_t hDriver,
                                               ze_driver_ipc_properties_t* pProperties) {
    return guarded(__func__, [&] {
        lookup<Driver>(hDriver);
        require_nonnull(pProperties, "pIpcProperties");
        pProperties->flags = 0;  // memory is exported by descriptor
    });
}

ZE_EXPORT ze_result_t zeDriverGetExtensionProperties(ze_driver_handle_t hDriver, uint32_t* pCount,
                                                     ze_driver_extension_properties_t* pProperties) {
    return guarded(__func__, [&] {
        lookup<Driver>(hDriver);
        const auto& all = extensions();
        return write_handles(pCount, pProperties, "pExtensionProperties", all.size(),
                             [&](uint32_t index, ze_driver_extension_properties_t& out) {
                                 copy_text(out.name, all[index].name);
                                 out.version = all[index].version;
                             });
    });
}

ZE_EXPORT ze_result_t zeDriverGetExtensionFunctionAddress(ze_driver_handle_t hDriver, const char* name,
                                                          void** ppFunctionAddress) {
    return guarded(__func__, [&] {
        lookup<Driver>(hDriver);
        require_nonnull(name, "name");
        require_nonnull(ppFunctionAddress, "ppFunctionAddress");
        *ppFunctionAddress = find_extension(name);
    });
}

ZE_EXPORT ze_result_t zeDriverGetLastErrorDescription(ze_driver_handle_t hDriver, const char** ppString) {
    return guarded(__func__, [&] {
        lookup<Driver>(hDriver);
        require_nonnull(ppString, "ppString");
        *ppString = last_description();
    });
}
