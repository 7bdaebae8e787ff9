// The types of a compiler library beside OpenVINO, as `npu_driver_compiler.h` of Intel's compiler has them.
#pragma once

#include <cstddef>
#include <cstdint>

using vcl_compiler_handle_t = struct vcl_compiler*;
using vcl_executable_handle_t = struct vcl_executable*;
using vcl_query_handle_t = struct vcl_query*;
using vcl_profiling_handle_t = struct vcl_profiling*;
using vcl_log_handle_t = struct vcl_log*;

enum vcl_result_t : uint32_t {
    VCL_RESULT_SUCCESS = 0,
    VCL_RESULT_ERROR_OUT_OF_MEMORY = 0x70000002,
    VCL_RESULT_ERROR_UNSUPPORTED_FEATURE = 0x78000003,
    VCL_RESULT_ERROR_INVALID_ARGUMENT = 0x78000004,
    VCL_RESULT_ERROR_INVALID_NULL_HANDLE = 0x78000005,
    VCL_RESULT_ERROR_IO = 0x78000006,
    VCL_RESULT_ERROR_INVALID_IR = 0x78000007,
    VCL_RESULT_ERROR_UNKNOWN = 0x7ffffffe,
};

enum vcl_profiling_request_type_t : uint32_t {
    VCL_PROFILING_LAYER_LEVEL = 1,
    VCL_PROFILING_TASK_LEVEL = 2,
    VCL_PROFILING_RAW = 3,
};

struct vcl_version_info_t {
    uint16_t major;
    uint16_t minor;
};

struct vcl_compiler_properties_t {
    const char* id;
    vcl_version_info_t version;
    uint32_t supportedOpsets;
};

struct vcl_profiling_properties_t {
    vcl_version_info_t version;
};

struct vcl_device_desc_t {
    uint64_t size;
    uint32_t deviceID;  // of PCI; 0 without a device
    uint16_t revision;
    uint32_t tileCount;
};

struct vcl_compiler_desc_t {
    vcl_version_info_t version;
    uint32_t debugLevel;
};

struct vcl_executable_desc_t {
    const uint8_t* modelIRData;
    uint64_t modelIRSize;
    const char* options;
    uint64_t optionsSize;
};
using vcl_query_desc_t = vcl_executable_desc_t;

struct vcl_allocator_t {
    uint8_t* (*allocate)(uint64_t);
    void (*deallocate)(uint8_t*);
};

struct vcl_allocator2_t {
    uint8_t* (*allocate)(vcl_allocator2_t*, uint64_t);
    void (*deallocate)(vcl_allocator2_t*, uint8_t*);
};

struct vcl_profiling_input_t {
    const uint8_t* blobData;
    uint64_t blobSize;
    const uint8_t* profData;
    uint64_t profSize;
};

struct vcl_profiling_output_t {
    const uint8_t* data;
    uint64_t size;
};
