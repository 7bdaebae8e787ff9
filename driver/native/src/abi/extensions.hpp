// The NPU extensions: graph 1.17, profiling 1.0, command queue 1.1, context 1.0, driver 1.0, device 1.0.
#pragma once

#include "abi/ze.hpp"

using ze_graph_handle_t = struct _ze_graph_handle_t*;
using ze_graph_query_network_handle_t = struct _ze_graph_query_network_handle_t*;
using ze_graph_build_log_handle_t = struct _ze_graph_build_log_handle_t*;
using ze_graph_profiling_pool_handle_t = struct _ze_graph_profiling_pool_handle_t*;
using ze_graph_profiling_query_handle_t = struct _ze_graph_profiling_query_handle_t*;

constexpr uint32_t ZE_GRAPH_EXT_VERSION = ze_make_version(1, 17);
constexpr uint32_t ZE_PROFILING_DATA_EXT_VERSION = ze_make_version(1, 0);

enum : uint32_t {
    ZE_STRUCTURE_TYPE_GRAPH_ARGUMENT_PROPERTIES = 0x4,
    ZE_STRUCTURE_TYPE_MUTABLE_GRAPH_ARGUMENT_EXP_DESC_DEPRECATED = 0x7,
    ZE_STRUCTURE_TYPE_GRAPH_INPUT_HASH = 0x8,
    ZE_STRUCTURE_TYPE_GRAPH_ARGUMENT_PROPERTY_STRIDES = 0x9,
    ZE_STRUCTURE_TYPE_GRAPH_ARGUMENT_TENSOR = 0xa,
    ZE_STRUCTURE_TYPE_GRAPH_ARGUMENT_STRIDES = 0xb,
    ZE_STRUCTURE_TYPE_GRAPH_ARGUMENT_PROPERTIES_2 = 0xc,
    ZE_STRUCTURE_TYPE_GRAPH_ARGUMENT_PROPERTIES_3 = 0xd,
};

enum : uint32_t { ZE_GRAPH_FORMAT_NATIVE = 1, ZE_GRAPH_FORMAT_NGRAPH_LITE = 2 };
enum : uint32_t {
    ZE_GRAPH_FLAG_DISABLE_CACHING = 1,
    ZE_GRAPH_FLAG_ENABLE_PROFILING = 2,
    ZE_GRAPH_FLAG_INPUT_GRAPH_PERSISTENT = 4,
    ZE_GRAPH_FLAG_SECURE_COMPILE = 8,
    ZE_GRAPH_FLAG_OPTIMIZE_FOR_DYNAMIC_SHAPES = 16,
    ZE_GRAPH_FLAGS_ALL = 31,
};
enum : uint32_t {
    ZE_GRAPH_PROPERTIES_FLAG_LOADED_FROM_CACHE = 1,
    ZE_GRAPH_PROPERTIES_FLAG_COMPILED = 2,
    ZE_GRAPH_PROPERTIES_FLAG_PRE_COMPILED = 4,
    ZE_GRAPH_PROPERTIES_FLAG_NO_STANDARD_ALLOCATION = 8,
    ZE_GRAPH_PROPERTIES_FLAG_PROFILING_ENABLED = 16,
};
enum : uint32_t { ZE_GRAPH_STAGE_INITIALIZE = 2 };
enum : uint32_t { ZE_GRAPH_ARGUMENT_TYPE_INPUT = 0, ZE_GRAPH_ARGUMENT_TYPE_OUTPUT = 1 };
enum : uint32_t {
    ZE_GRAPH_QUERY_MEMORY_DDR = 1,
    ZE_GRAPH_QUERY_MEMORY_DRIVER_CACHE = 2,
    ZE_GRAPH_QUERY_MEMORY_PROGRAM_CACHE = 3,
};
enum : uint32_t { ZE_NPU_COMPILER_OPTIONS = 1, ZE_NPU_DRIVER_OPTIONS = 2 };

constexpr size_t ZE_MAX_GRAPH_ARGUMENT_NAME = 256;
constexpr size_t ZE_MAX_GRAPH_ARGUMENT_DIMENSIONS_SIZE = 5;
constexpr size_t ZE_MAX_GRAPH_TENSOR_REF_DIMS = 8;
constexpr size_t ZE_MAX_GRAPH_TENSOR_NAMES_SIZE = 32;

struct ze_graph_version_info_t {
    uint32_t major;
    uint32_t minor;
    uint32_t patch;
};

struct ze_device_graph_properties_t : ze_base_properties_t {
    uint32_t graphExtensionVersion;
    uint16_t compilerMajor;
    uint16_t compilerMinor;
    uint32_t graphFormatsSupported;
    uint32_t maxOVOpsetVersionSupported;
};

struct ze_device_graph_properties_2_t {
    ze_device_graph_properties_t base;
    ze_graph_version_info_t elfVersion;
    ze_graph_version_info_t runtimeVersion;
};

struct ze_graph_desc_t : ze_base_properties_t {
    uint32_t format;
    size_t inputSize;
    const uint8_t* pInput;
    const char* pBuildFlags;
};

struct ze_graph_desc_2_t {
    ze_graph_desc_t base;
    uint32_t flags;
};

struct ze_graph_input_hash_t : ze_base_properties_t {
    uint64_t hash;
};

struct ze_graph_properties_t : ze_base_properties_t {
    uint32_t numGraphArgs;
};

struct ze_graph_properties_2_t : ze_base_properties_t {
    uint32_t numGraphArgs;
    uint32_t initStageRequired;
};

struct ze_graph_properties_3_t : ze_base_properties_t {
    uint32_t numGraphArgs;
    uint32_t initStageRequired;
    uint32_t flags;
};

struct ze_graph_argument_properties_t : ze_base_properties_t {
    char name[ZE_MAX_GRAPH_ARGUMENT_NAME];
    uint32_t type;
    uint32_t dims[ZE_MAX_GRAPH_ARGUMENT_DIMENSIONS_SIZE];
    uint32_t networkPrecision;
    uint32_t networkLayout;
    uint32_t devicePrecision;
    uint32_t deviceLayout;
};

struct ze_graph_argument_properties_2_t {
    ze_graph_argument_properties_t base;
    float quantReverseScale;
    uint8_t quantZeroPoint;
};

struct ze_graph_argument_properties_3_t {
    ze_graph_argument_properties_2_t base;
    uint32_t dims_count;
    char debug_friendly_name[ZE_MAX_GRAPH_ARGUMENT_NAME];
    char associated_tensor_names[ZE_MAX_GRAPH_TENSOR_NAMES_SIZE][ZE_MAX_GRAPH_ARGUMENT_NAME];
    uint32_t associated_tensor_names_count;
};

struct ze_graph_argument_property_strides_t : ze_base_properties_t {
    ze_bool_t supportsDynamicStrides;
};

struct ze_graph_argument_metadata_t : ze_base_properties_t {
    uint32_t type;
    char friendly_name[ZE_MAX_GRAPH_ARGUMENT_NAME];
    uint32_t data_type;
    uint64_t shape[ZE_MAX_GRAPH_TENSOR_REF_DIMS];
    uint32_t shape_size;
    char tensor_names[ZE_MAX_GRAPH_TENSOR_NAMES_SIZE][ZE_MAX_GRAPH_ARGUMENT_NAME];
    uint32_t tensor_names_count;
    char input_name[ZE_MAX_GRAPH_ARGUMENT_NAME];
};

struct ze_graph_argument_value_tensor_t : ze_base_properties_t {
    const void* pTensor;
};

struct ze_graph_argument_value_strides_t : ze_base_properties_t {
    uint32_t userStrides[ZE_MAX_GRAPH_ARGUMENT_DIMENSIONS_SIZE];
};

struct ze_graph_memory_query_t {
    uint64_t total;
    uint64_t allocated;
};

// Only ever extended at the end: a program of version 1.8 uses the first 23 entries.
struct ze_graph_dditable_ext_t {
    ze_result_t (*pfnCreate)(ze_context_handle_t, ze_device_handle_t, const ze_graph_desc_t*,
                             ze_graph_handle_t*);
    ze_result_t (*pfnDestroy)(ze_graph_handle_t);
    ze_result_t (*pfnGetProperties)(ze_graph_handle_t, ze_graph_properties_t*);
    ze_result_t (*pfnGetArgumentProperties)(ze_graph_handle_t, uint32_t, ze_graph_argument_properties_t*);
    ze_result_t (*pfnSetArgumentValue)(ze_graph_handle_t, uint32_t, const void*);
    ze_result_t (*pfnAppendGraphInitialize)(ze_command_list_handle_t, ze_graph_handle_t, ze_event_handle_t,
                                            uint32_t, ze_event_handle_t*);
    ze_result_t (*pfnAppendGraphExecute)(ze_command_list_handle_t, ze_graph_handle_t,
                                         ze_graph_profiling_query_handle_t, ze_event_handle_t, uint32_t,
                                         ze_event_handle_t*);
    ze_result_t (*pfnGetNativeBinary)(ze_graph_handle_t, size_t*, uint8_t*);
    ze_result_t (*pfnDeviceGetGraphProperties)(ze_device_handle_t, ze_device_graph_properties_t*);
    // 1.1
    ze_result_t (*pfnGraphGetArgumentMetadata)(ze_graph_handle_t, uint32_t, ze_graph_argument_metadata_t*);
    ze_result_t (*pfnGetArgumentProperties2)(ze_graph_handle_t, uint32_t, ze_graph_argument_properties_2_t*);
    // 1.2
    ze_result_t (*pfnGetArgumentProperties3)(ze_graph_handle_t, uint32_t, ze_graph_argument_properties_3_t*);
    // 1.3
    ze_result_t (*pfnQueryNetworkCreate)(ze_context_handle_t, ze_device_handle_t, const ze_graph_desc_t*,
                                         ze_graph_query_network_handle_t*);
    ze_result_t (*pfnQueryNetworkDestroy)(ze_graph_query_network_handle_t);
    ze_result_t (*pfnQueryNetworkGetSupportedLayers)(ze_graph_query_network_handle_t, size_t*, char*);
    // 1.4
    ze_result_t (*pfnBuildLogGetString)(ze_graph_handle_t, uint32_t*, char*);
    // 1.5
    ze_result_t (*pfnCreate2)(ze_context_handle_t, ze_device_handle_t, const ze_graph_desc_2_t*,
                              ze_graph_handle_t*);
    ze_result_t (*pfnQueryNetworkCreate2)(ze_context_handle_t, ze_device_handle_t, const ze_graph_desc_2_t*,
                                          ze_graph_query_network_handle_t*);
    ze_result_t (*pfnQueryContextMemory)(ze_context_handle_t, uint32_t, ze_graph_memory_query_t*);
    // 1.6
    ze_result_t (*pfnDeviceGetGraphProperties2)(ze_device_handle_t, ze_device_graph_properties_2_t*);
    // 1.7
    ze_result_t (*pfnGetNativeBinary2)(ze_graph_handle_t, size_t*, const uint8_t**);
    // 1.8
    ze_result_t (*pfnGetProperties2)(ze_graph_handle_t, ze_graph_properties_2_t*);
    ze_result_t (*pfnGraphInitialize)(ze_graph_handle_t);
    // 1.11
    ze_result_t (*pfnCompilerGetSupportedOptions)(ze_device_handle_t, uint32_t, size_t*, char*);
    ze_result_t (*pfnCompilerIsOptionSupported)(ze_device_handle_t, uint32_t, const char*, const char*);
    // 1.12
    ze_result_t (*pfnCreate3)(ze_context_handle_t, ze_device_handle_t, const ze_graph_desc_2_t*,
                              ze_graph_handle_t*, ze_graph_build_log_handle_t*);
    ze_result_t (*pfnGetProperties3)(ze_graph_handle_t, ze_graph_properties_3_t*);
    ze_result_t (*pfnBuildLogGetString2)(ze_graph_build_log_handle_t, uint32_t*, char*);
    ze_result_t (*pfnBuildLogDestroy)(ze_graph_build_log_handle_t);
    // 1.15
    ze_result_t (*pfnSetArgumentValue2)(ze_graph_handle_t, uint32_t, const void*);
    // 1.16
    ze_result_t (*pfnEvict)(ze_graph_handle_t);
};

// ---------------------------------------------------------------- profiling

enum : uint32_t {
    ZE_GRAPH_PROFILING_LAYER_LEVEL = 1,
    ZE_GRAPH_PROFILING_TASK_LEVEL = 2,
    ZE_GRAPH_PROFILING_RAW = 4
};
enum : uint32_t {
    ZE_LAYER_STATUS_NOT_RUN = 1,
    ZE_LAYER_STATUS_OPTIMIZED_OUT = 2,
    ZE_LAYER_STATUS_EXECUTED = 3
};
enum : uint32_t { ZE_TASK_EXECUTE_DPU = 1, ZE_TASK_EXECUTE_SW = 2, ZE_TASK_EXECUTE_DMA = 3 };

struct ze_profiling_layer_info {
    char name[256];
    char layer_type[50];
    uint32_t status;
    uint64_t start_time_ns;
    uint64_t duration_ns;
    uint32_t layer_id;
    uint64_t fused_layer_id;
    uint64_t dpu_ns;
    uint64_t sw_ns;
    uint64_t dma_ns;
};

struct ze_profiling_task_info {
    char name[256];
    char layer_type[50];
    uint32_t exec_type;
    uint64_t start_time_ns;
    uint64_t duration_ns;
    uint32_t active_cycles;
    uint32_t stall_cycles;
    uint32_t task_id;
    uint32_t parent_layer_id;
};

struct ze_device_profiling_data_properties_t : ze_base_properties_t {
    uint32_t extensionVersion;
};

struct ze_graph_profiling_dditable_ext_t {
    ze_result_t (*pfnProfilingPoolCreate)(ze_graph_handle_t, uint32_t, ze_graph_profiling_pool_handle_t*);
    ze_result_t (*pfnProfilingPoolDestroy)(ze_graph_profiling_pool_handle_t);
    ze_result_t (*pfnProfilingQueryCreate)(ze_graph_profiling_pool_handle_t, uint32_t,
                                           ze_graph_profiling_query_handle_t*);
    ze_result_t (*pfnProfilingQueryDestroy)(ze_graph_profiling_query_handle_t);
    ze_result_t (*pfnProfilingQueryGetData)(ze_graph_profiling_query_handle_t, uint32_t, uint32_t*, uint8_t*);
    ze_result_t (*pfnDeviceGetProfilingDataProperties)(ze_device_handle_t,
                                                       ze_device_profiling_data_properties_t*);
    ze_result_t (*pfnProfilingLogGetString)(ze_graph_profiling_query_handle_t, uint32_t*, char*);
};

// ---------------------------------------------------------------- command queue 1.1, context 1.0, driver 1.0

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

// ---------------------------------------------------------------- runtime requirements: device 1.0

enum : uint32_t {
    ZE_STRUCTURE_TYPE_RUNTIME_REQUIREMENTS_GRAPH_DESC_EXT = 0x20043,  // of the extension
    ZE_STRUCTURE_TYPE_RUNTIME_REQUIREMENTS_GRAPH_DESC = 0x20045,      // of API 1.16
};
enum : uint32_t {
    ZE_VALIDATE_RUNTIME_REQUIREMENTS_RESULT_NOT_APPLICABLE = 0,
    ZE_VALIDATE_RUNTIME_REQUIREMENTS_RESULT_REQUIREMENTS_MET = 1,
    ZE_VALIDATE_RUNTIME_REQUIREMENTS_RESULT_REQUIREMENTS_NOT_MET = 3,
};

struct ze_runtime_requirements_graph_desc_t : ze_base_properties_t {
    ze_graph_handle_t requirementsSrc;
};

struct ze_validate_runtime_requirements_output_t : ze_base_properties_t {
    uint32_t result;
};

struct ze_device_npu_dditable_ext_t {
    ze_result_t (*pfnGetRuntimeRequirements)(ze_device_handle_t, const void*, size_t*, char*);
    ze_result_t (*pfnGetRuntimeRequirementsKey)(ze_device_handle_t, const char**);
    ze_result_t (*pfnValidateRuntimeRequirements)(ze_device_handle_t, const char*,
                                                  ze_validate_runtime_requirements_output_t*);
};
