// Contexts and their memory.
#include "entry/calls.hpp"
#include "interface/schema.hpp"
#include "memory/mapped_files.hpp"

using namespace softnpu;

namespace {

// The extensions chained to the descriptor of an allocation.
struct Extras {
    bool exportable = false;
    const ze_external_memory_fd_t* import = nullptr;
    const ze_external_memmap_sysmem_ext_desc_t* system_memory = nullptr;
};

Error wrong_type(const char* object, uint32_t flags) {
    return invalid_enumeration(object, format("types %#x", flags), "2 (DMA_BUF)");
}

Extras extras_of(const void* next) {
    Extras extras;
    for (const auto& link : ze_chain(next)) {
        if (link.stype == ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC) {
            const uint32_t flags = static_cast<const ze_external_memory_export_desc_t&>(link).flags;
            if (flags != 0 && flags != ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF)
                throw wrong_type("export descriptor", flags);
            extras.exportable = flags != 0;
        } else if (link.stype == ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD) {
            extras.import = static_cast<const ze_external_memory_fd_t*>(&link);
            if (extras.import->flags != ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF) {
                throw wrong_type("import descriptor", extras.import->flags);
            }
        } else if (link.stype == ZE_STRUCTURE_TYPE_EXTERNAL_MEMMAP_SYSMEM_EXT_DESC) {
            extras.system_memory = static_cast<const ze_external_memmap_sysmem_ext_desc_t*>(&link);
        }
    }
    return extras;
}

void* allocate(const Context& context, std::string_view kind, ze_memory_type_t type, const Extras& extras,
               size_t size, size_t alignment) {
    if (extras.import != nullptr) {
        MemoryPool& pool = *context.memory();
        const int fd = extras.import->fd;
        const bool foreign = is_shared_memory(fd) && !has_fixed_size(fd);
        return pool.publish(foreign ? import_foreign_file(pool, fd, kind) : pool.import_segment(fd, kind),
                            type, true, context);
    }
    return context.memory()->publish(context.memory()->allocate(kind, size, alignment, extras.exportable),
                                     type, extras.exportable, context);
}

}  // namespace

ZE_EXPORT ze_result_t zeContextCreate(ze_driver_handle_t hDriver, const ze_context_desc_t* desc,
                                      ze_context_handle_t* phContext) {
    return guarded(__func__, [&] {
        const auto driver = lookup_live<Driver>(hDriver);
        require_nonnull(desc, "desc");
        require_nonnull(phContext, "phContext");
        *phContext = new_handle<ze_context_handle_t>(Context::create(driver));
    });
}

ZE_EXPORT ze_result_t zeContextDestroy(ze_context_handle_t hContext) {
    return guarded(__func__, [&] { remove<Context>(hContext); });
}

ZE_EXPORT ze_result_t zeContextGetStatus(ze_context_handle_t hContext) {
    // DEVICE_LOST without a daemon
    return guarded(__func__, [&] { lookup<Context>(hContext)->device()->busy_ns(); });
}

ZE_EXPORT ze_result_t zeMemAllocHost(ze_context_handle_t hContext, const ze_host_mem_alloc_desc_t* desc,
                                     size_t size, size_t alignment, void** pptr) {
    return guarded(__func__, [&] {
        const auto context = lookup_live<Context>(hContext);
        require_nonnull(desc, "host_desc");
        require_nonnull(pptr, "pptr");
        if (const auto* const given = extras_of(desc->pNext).system_memory) {
            // that the host does not read it back: in Intel's driver the device does not write it then
            const bool for_reading = (desc->flags & ZE_HOST_MEM_ALLOC_FLAG_BIAS_WRITE_COMBINED) != 0;
            auto block =
                import_system_memory(*context->memory(), given->pSystemMemory, given->size, for_reading);
            *pptr = context->memory()->publish(std::move(block), ZE_MEMORY_TYPE_HOST, true, *context);
            return;
        }
        *pptr = allocate(*context, schema::memory_kind::HOST, ZE_MEMORY_TYPE_HOST, extras_of(desc->pNext),
                         size, alignment);
    });
}

ZE_EXPORT ze_result_t zeMemAllocDevice(ze_context_handle_t hContext, const ze_device_mem_alloc_desc_t* desc,
                                       size_t size, size_t alignment, ze_device_handle_t hDevice,
                                       void** pptr) {
    return guarded(__func__, [&] {
        const auto context = lookup_live<Context>(hContext);
        context->check_device(*lookup_live<Device>(hDevice));
        require_nonnull(desc, "device_desc");
        require_nonnull(pptr, "pptr");
        *pptr = allocate(*context, schema::memory_kind::DEVICE, ZE_MEMORY_TYPE_DEVICE, extras_of(desc->pNext),
                         size, alignment);
    });
}

ZE_EXPORT ze_result_t zeMemAllocShared(ze_context_handle_t hContext,
                                       const ze_device_mem_alloc_desc_t* device_desc,
                                       const ze_host_mem_alloc_desc_t* host_desc, size_t size,
                                       size_t alignment, ze_device_handle_t hDevice, void** pptr) {
    return guarded(__func__, [&] {
        const auto context = lookup_live<Context>(hContext);
        // may be null: then the memory belongs to no device
        if (hDevice != nullptr) context->check_device(*lookup_live<Device>(hDevice));
        require_nonnull(device_desc, "device_desc");
        require_nonnull(host_desc, "host_desc");
        require_nonnull(pptr, "pptr");
        Extras extras = extras_of(device_desc->pNext);
        if (!extras.exportable && extras.import == nullptr) extras = extras_of(host_desc->pNext);
        *pptr =
            allocate(*context, schema::memory_kind::SHARED, ZE_MEMORY_TYPE_SHARED, extras, size, alignment);
    });
}

ZE_EXPORT ze_result_t zeMemFree(ze_context_handle_t hContext, void* ptr) {
    return guarded(__func__, [&] { lookup<Context>(hContext)->free(ptr); });
}

ZE_EXPORT ze_result_t zeMemGetAllocProperties(ze_context_handle_t hContext, const void* ptr,
                                              ze_memory_allocation_properties_t* pProperties,
                                              ze_device_handle_t* phDevice) {
    return guarded(__func__, [&] {
        const auto context = lookup<Context>(hContext);
        require_nonnull(pProperties, "pMemAllocProperties");
        const Allocation allocation = context->memory()->find(ptr, ZE_RESULT_ERROR_NOT_AVAILABLE);
        for (auto& link : ze_chain(pProperties->pNext)) {
            if (link.stype != ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD) continue;
            auto& out = static_cast<ze_external_memory_fd_t&>(link);
            if (out.flags != ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF)
                throw wrong_type("export structure", out.flags);
            out.fd = context->memory()->export_segment(*allocation.block).release();
        }
        pProperties->type = allocation.type;
        pProperties->id = allocation.id;
        pProperties->pageSize = schema::blob::PAGE;
        if (phDevice != nullptr) {
            *phDevice = reinterpret_cast<ze_device_handle_t>(context->device_handle());
        }
    });
}

ZE_EXPORT ze_result_t zeMemGetAddressRange(ze_context_handle_t hContext, const void* ptr, void** pBase,
                                           size_t* pSize) {
    return guarded(__func__, [&] {
        const Allocation allocation =
            lookup<Context>(hContext)->memory()->find(ptr, ZE_RESULT_ERROR_NOT_AVAILABLE);
        if (pBase != nullptr) *pBase = reinterpret_cast<void*>(allocation.block->device_address());
        if (pSize != nullptr) *pSize = allocation.block->size;
    });
}
