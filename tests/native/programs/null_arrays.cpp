// Lists of handles: a size without an array is refused, an array with the size 0 is not written.
#include "npu.hpp"

int main() {
    const Npu npu;
    uint32_t count = 1;
    if (zeDriverGet(&count, nullptr) != ZE_RESULT_ERROR_INVALID_NULL_POINTER) std::abort();
    if (zeDeviceGet(npu.driver, &count, nullptr) != ZE_RESULT_ERROR_INVALID_NULL_POINTER) std::abort();
    if (zeDriverGetExtensionProperties(npu.driver, &count, nullptr) != ZE_RESULT_ERROR_INVALID_NULL_POINTER) {
        std::abort();
    }
    npu.check(zeDeviceGetMemoryProperties(npu.device, &count, nullptr), "zeDeviceGetMemoryProperties");
    ze_driver_handle_t driver = nullptr;
    count = 0;
    npu.check(zeDriverGet(&count, &driver), "zeDriverGet");
    if (count != 1 || driver != nullptr) std::abort();
    ze_device_handle_t device = nullptr;
    count = 0;
    npu.check(zeDeviceGet(npu.driver, &count, &device), "zeDeviceGet");
    if (count != 1 || device != nullptr) std::abort();
    npu.check(zeContextDestroy(npu.context), "zeContextDestroy");
    std::puts("done");
}
