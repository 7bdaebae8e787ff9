// The smaller NPU extensions: command queue 1.1, context 1.0, driver 1.0.
#pragma once

#include "abi/ze.hpp"

enum : uint32_t {
    ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC_NPU_EXT = 1,
    ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC_NPU_EXT_2 = 2,
};
enum : uint32_t { ZE_NPU_COMMAND_QUEUE_OPTION_TURBO = 1, ZE_NPU_COMMAND_QUEUE_OPTION_DEVICE_SYNC = 2 };
enum : uint32_t { ZE_WORKLOAD_TYPE_DEFAULT = 0, ZE_WORKLOAD_TYPE_BACKGROUND = 1 };

struct ze_command_queue_desc_npu_ext_t : ze_base_properties_t {
    ze_bool_t turbo;
};

struct ze_command_queue_desc_npu_ext_2_t : ze_base_properties_t {
    uint32_t options;
};

struct ze_command_queue_npu_dditable_ext_t {
    ze_result_t (*pfnSetWorkloadType)(ze_command_queue_handle_t, uint32_t);
};

enum : uint32_t { ZE_NPU_CONTEXT_OPTION_IDLE_OPTIMIZATIONS = 1 };

struct ze_context_properties_npu_ext_t : ze_base_properties_t {
    uint32_t options;
};

struct ze_context_npu_dditable_ext_t {
    ze_result_t (*pfnSetProperties)(ze_context_handle_t, ze_context_properties_npu_ext_t*);
    ze_result_t (*pfnReleaseMemory)(ze_context_handle_t);
};

struct ze_driver_extension_npu_ext_t : ze_base_properties_t {
    const char* name;
    uint32_t version;
    void** ppFunctionAddress;
};

struct ze_driver_npu_dditable_ext_t {
    ze_result_t (*pfnGetExtension)(ze_driver_handle_t, ze_driver_extension_npu_ext_t*);
};
