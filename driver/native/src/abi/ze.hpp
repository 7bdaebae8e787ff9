// Level Zero core API 1.16: the types that this driver reads and writes. Names, numbers and layouts are
// those of the public specification; `layout.cpp` checks every size and offset.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/ze_result.hpp"

#define ZE_EXPORT extern "C" __attribute__((visibility("default")))

constexpr uint32_t ze_make_version(uint32_t major, uint32_t minor) { return major << 16 | minor; }
constexpr uint32_t ZE_API_VERSION = ze_make_version(1, 16);

using ze_bool_t = uint8_t;
using ze_driver_handle_t = struct _ze_driver_handle_t*;
using ze_device_handle_t = struct _ze_device_handle_t*;
using ze_context_handle_t = struct _ze_context_handle_t*;
using ze_command_queue_handle_t = struct _ze_command_queue_handle_t*;
using ze_command_list_handle_t = struct _ze_command_list_handle_t*;
using ze_fence_handle_t = struct _ze_fence_handle_t*;
using ze_event_pool_handle_t = struct _ze_event_pool_handle_t*;
using ze_event_handle_t = struct _ze_event_handle_t*;

enum ze_structure_type_t : uint32_t {
    ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES = 0x3,
    ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC = 0x18,
    ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD = 0x19,
    ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD = 0x1a,
    ZE_STRUCTURE_TYPE_DEVICE_IP_VERSION_EXT = 0x1000f,
    ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2 = 0x20006,
    ZE_STRUCTURE_TYPE_MUTABLE_COMMAND_LIST_EXP_PROPERTIES = 0x20015,
    ZE_STRUCTURE_TYPE_MUTABLE_COMMAND_LIST_EXP_DESC = 0x20016,
    ZE_STRUCTURE_TYPE_MUTABLE_GRAPH_ARGUMENT_EXP_DESC = 0x20020,
    ZE_STRUCTURE_TYPE_EXTERNAL_MEMMAP_SYSMEM_EXT_DESC = 0x20037,
};

// What every extensible structure begins with: a link of the chain that `pNext` makes.
struct ze_base_properties_t {
    uint32_t stype;
    void* pNext;
};

// The structures that have flags alone.
struct ze_flags_t : ze_base_properties_t {
    uint32_t flags;
};

// The links of a chain, for range-based loops.
template <class Link>
struct ze_chain_t {
    struct iterator {
        Link* link;
        Link& operator*() const { return *link; }
        iterator& operator++() {
            link = static_cast<Link*>(link->pNext);
            return *this;
        }
        bool operator!=(const iterator& other) const { return link != other.link; }
    };
    Link* first;
    iterator begin() const { return {first}; }
    iterator end() const { return {nullptr}; }
};
inline ze_chain_t<ze_base_properties_t> ze_chain(void* next) {
    return {static_cast<ze_base_properties_t*>(next)};
}
inline ze_chain_t<const ze_base_properties_t> ze_chain(const void* next) {
    return {static_cast<const ze_base_properties_t*>(next)};
}

// ---------------------------------------------------------------- driver

enum : uint32_t { ZE_INIT_FLAG_VPU_ONLY = 2, ZE_INIT_DRIVER_TYPE_FLAG_NPU = 2 };

using ze_init_driver_type_desc_t = ze_flags_t;

struct ze_driver_properties_t : ze_base_properties_t {
    uint8_t uuid[16];
    uint32_t driverVersion;
};

using ze_driver_ipc_properties_t = ze_flags_t;

struct ze_driver_extension_properties_t {
    char name[256];
    uint32_t version;
};

// ---------------------------------------------------------------- device

enum : uint32_t { ZE_DEVICE_TYPE_VPU = 5, ZE_DEVICE_PROPERTY_FLAG_INTEGRATED = 1 };

struct ze_device_properties_t : ze_base_properties_t {
    uint32_t type;
    uint32_t vendorId;
    uint32_t deviceId;
    uint32_t flags;
    uint32_t subdeviceId;
    uint32_t coreClockRate;
    uint64_t maxMemAllocSize;
    uint32_t maxHardwareContexts;
    uint32_t maxCommandQueuePriority;
    uint32_t numThreadsPerEU;
    uint32_t physicalEUSimdWidth;
    uint32_t numEUsPerSubslice;
    uint32_t numSubslicesPerSlice;
    uint32_t numSlices;
    uint64_t timerResolution;
    uint32_t timestampValidBits;
    uint32_t kernelTimestampValidBits;
    uint8_t uuid[16];
    char name[256];
};

struct ze_device_ip_version_ext_t : ze_base_properties_t {
    uint32_t ipVersion;
};

struct ze_mutable_command_list_exp_properties_t : ze_base_properties_t {
    uint32_t mutableCommandListFlags;
    uint32_t mutableCommandFlags;
};

struct ze_device_compute_properties_t : ze_base_properties_t {
    uint32_t maxTotalGroupSize;
    uint32_t maxGroupSize[3];
    uint32_t maxGroupCount[3];
    uint32_t maxSharedLocalMemory;
    uint32_t numSubGroupSizes;
    uint32_t subGroupSizes[8];
};

struct ze_device_image_properties_t : ze_base_properties_t {
    uint32_t maxImageDims1D;
    uint32_t maxImageDims2D;
    uint32_t maxImageDims3D;
    uint64_t maxImageBufferSize;
    uint32_t maxImageArraySlices;
    uint32_t maxSamplers;
    uint32_t maxReadImageArgs;
    uint32_t maxWriteImageArgs;
};

struct ze_device_memory_properties_t : ze_base_properties_t {
    uint32_t flags;
    uint32_t maxClockRate;
    uint32_t maxBusWidth;
    uint64_t totalSize;
    char name[256];
};

enum : uint32_t { ZE_MEMORY_ACCESS_CAP_FLAG_RW = 1, ZE_MEMORY_ACCESS_CAP_FLAG_ATOMIC = 2 };

struct ze_device_memory_access_properties_t : ze_base_properties_t {
    uint32_t hostAllocCapabilities;
    uint32_t deviceAllocCapabilities;
    uint32_t sharedSingleDeviceAllocCapabilities;
    uint32_t sharedCrossDeviceAllocCapabilities;
    uint32_t sharedSystemAllocCapabilities;
};

enum : uint32_t {
    ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF = 2,
    ZE_EXTERNAL_MEMORY_TYPE_FLAG_STANDARD_ALLOCATION = 0x100,  // deprecated, and what OpenVINO looks at
};

struct ze_device_external_memory_properties_t : ze_base_properties_t {
    uint32_t memoryAllocationImportTypes;
    uint32_t memoryAllocationExportTypes;
    uint32_t imageImportTypes;
    uint32_t imageExportTypes;
};

using ze_device_p2p_properties_t = ze_flags_t;

enum : uint32_t {
    ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE = 1,
    ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY = 2,
};

struct ze_command_queue_group_properties_t : ze_base_properties_t {
    uint32_t flags;
    size_t maxMemoryFillPatternSize;
    uint32_t numQueues;
};

struct ze_pci_ext_properties_t : ze_base_properties_t {
    uint32_t domain;
    uint32_t bus;
    uint32_t device;
    uint32_t function;
    int32_t genVersion;
    int32_t width;
    int64_t maxBandwidth;
};

// ---------------------------------------------------------------- context and memory

using ze_context_desc_t = ze_flags_t;

struct ze_device_mem_alloc_desc_t : ze_base_properties_t {
    uint32_t flags;
    uint32_t ordinal;
};

using ze_host_mem_alloc_desc_t = ze_flags_t;
constexpr uint32_t ZE_HOST_MEM_ALLOC_FLAG_BIAS_WRITE_COMBINED = 1u << 2;

// The import structure, and the export structure, whose `fd` is an output.
struct ze_external_memory_fd_t : ze_base_properties_t {
    uint32_t flags;
    int fd;
};

using ze_external_memory_export_desc_t = ze_flags_t;

struct ze_external_memmap_sysmem_ext_desc_t : ze_base_properties_t {
    void* pSystemMemory;
    uint64_t size;
};

enum ze_memory_type_t : uint32_t {
    ZE_MEMORY_TYPE_UNKNOWN = 0,
    ZE_MEMORY_TYPE_HOST = 1,
    ZE_MEMORY_TYPE_DEVICE = 2,
    ZE_MEMORY_TYPE_SHARED = 3,
};

struct ze_memory_allocation_properties_t : ze_base_properties_t {
    uint32_t type;
    uint64_t id;
    uint64_t pageSize;
};

// ---------------------------------------------------------------- queues, lists, fences, events

enum : uint32_t {
    ZE_COMMAND_QUEUE_MODE_DEFAULT = 0,
    ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS = 1,
    ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS = 2,
    ZE_COMMAND_QUEUE_PRIORITY_NORMAL = 0,
    ZE_COMMAND_QUEUE_PRIORITY_LOW = 1,
    ZE_COMMAND_QUEUE_PRIORITY_HIGH = 2,
};

struct ze_command_queue_desc_t : ze_base_properties_t {
    uint32_t ordinal;
    uint32_t index;
    uint32_t flags;
    uint32_t mode;
    uint32_t priority;
};

struct ze_command_list_desc_t : ze_base_properties_t {
    uint32_t commandQueueGroupOrdinal;
    uint32_t flags;
};

struct ze_copy_region_t {
    uint32_t originX;
    uint32_t originY;
    uint32_t originZ;
    uint32_t width;
    uint32_t height;
    uint32_t depth;
};

using ze_fence_desc_t = ze_flags_t;
enum : uint32_t { ZE_FENCE_FLAG_SIGNALED = 1 };

struct ze_event_pool_desc_t : ze_base_properties_t {
    uint32_t flags;
    uint32_t count;
};

struct ze_event_desc_t : ze_base_properties_t {
    uint32_t index;
    uint32_t signal;
    uint32_t wait;
};

// ---------------------------------------------------------------- mutable command lists

enum : uint32_t {
    ZE_MUTABLE_COMMAND_EXP_FLAG_GRAPH_ARGUMENT_DEPRECATED = 64,
    ZE_MUTABLE_COMMAND_EXP_FLAG_GRAPH_ARGUMENTS = 128,
};

using ze_mutable_exp_desc_t = ze_flags_t;

struct ze_mutable_graph_argument_exp_desc_t : ze_base_properties_t {
    uint64_t commandId;
    uint32_t argIndex;
    const void* pArgValue;
};
