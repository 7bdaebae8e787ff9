// The list of extensions, and the function tables of all but the graph extension.
#include "commands/queue.hpp"
#include "entry/calls.hpp"
#include "graph/cache_options.hpp"
#include "graph/profiling.hpp"
#include "session/driver.hpp"

namespace softnpu {

namespace {

const char* const GRAPH = "ZE_extension_graph";
const char* const PROFILING = "ZE_extension_profiling_data";
const char* const COMMAND_QUEUE = "ZE_extension_command_queue_npu";
const char* const CONTEXT = "ZE_extension_context_npu";
const char* const DRIVER = "ZE_extension_driver_npu";
const char* const DEVICE = "ZE_extension_device_npu";
const char* const SYSTEM_MEMORY = "ZE_extension_external_memmap_sysmem";
const char* const MUTABLE = "ZE_experimental_mutable_command_list";

std::vector<Extension> all_extensions() {
    std::vector<Extension> all = {
        {GRAPH, ZE_GRAPH_EXT_VERSION},          {PROFILING, ZE_PROFILING_DATA_EXT_VERSION},
        {COMMAND_QUEUE, ze_make_version(1, 1)}, {CONTEXT, ze_make_version(1, 0)},
        {DRIVER, ze_make_version(1, 0)},        {MUTABLE, ze_make_version(1, 1)},
        {SYSTEM_MEMORY, ze_make_version(1, 0)}, {DEVICE, ze_make_version(1, 0)}};
    for (uint32_t minor = 2; minor <= 8; ++minor) {
        all.push_back({std::string(GRAPH) + "_1_" + std::to_string(minor), ze_make_version(1, minor)});
    }
    return all;
}

ze_result_t set_workload_type(ze_command_queue_handle_t queue, uint32_t type) {
    return guarded("pfnSetWorkloadType", [&] {
        const auto command_queue = lookup<CommandQueue>(queue);
        if (type != ZE_WORKLOAD_TYPE_DEFAULT && type != ZE_WORKLOAD_TYPE_BACKGROUND) {
            throw invalid_enumeration("workload type", format("%u", type), "0 (default) or 1 (background)");
        }
        command_queue->set_workload(type == ZE_WORKLOAD_TYPE_BACKGROUND);
    });
}

ze_result_t set_context_properties(ze_context_handle_t context, ze_context_properties_npu_ext_t* properties) {
    return guarded("pfnSetProperties", [&] {
        const auto found = lookup<Context>(context);
        require_nonnull(properties, "ContextProperties");
        found->set_idle_pruning((properties->options & ZE_NPU_CONTEXT_OPTION_IDLE_OPTIMIZATIONS) != 0);
    });
}

ze_result_t release_memory(ze_context_handle_t context) {
    return guarded("pfnReleaseMemory", [&] { lookup<Context>(context)->release_memory(); });
}

ze_result_t get_extension(ze_driver_handle_t driver, ze_driver_extension_npu_ext_t* extension) {
    return guarded("pfnGetExtension", [&] {
        lookup<Driver>(driver);
        require_nonnull(extension, "pExtension");
        require_nonnull(extension->name, "name");
        require_nonnull(extension->ppFunctionAddress, "ppFunctionAddress");
        *extension->ppFunctionAddress = find_extension(extension->name);
    });
}

// ---- private: what the real driver's own tools and tests use

ze_result_t disk_cache_set_size(size_t size) {
    return guarded("zexDiskCacheSetSize", [&] { set_cache_limit(size); });
}

ze_result_t disk_cache_get_size(size_t* size) {
    return guarded("zexDiskCacheGetSize", [&] {
        require_nonnull(size, "size");
        *size = cache_limit();
    });
}

// `length`: the room for text and NUL, then the length of the text, which is cut to that; empty without a
// cache.
ze_result_t disk_cache_get_directory(char* path, size_t* length) {
    return guarded("zexDiskCacheGetDirectory", [&] {
        require_nonnull(path, "path");
        require_nonnull(length, "len");
        if (*length == 0) throw invalid_size("directory of the cache", "no room", "room for a text");
        const auto options = cache_options();
        const std::string directory = options ? options->directory : std::string();
        *length = directory.copy(path, *length - 1);
        path[*length] = '\0';
    });
}

ze_result_t set_idle_pruning_timeout(ze_context_handle_t context, uint64_t timeout_ms) {
    return guarded("zexContextSetIdlePruningTimeout",
                   [&] { lookup<Context>(context)->set_idle_timeout(timeout_ms); });
}

// The API takes tables as pointers to non-const.
template <class Table>
void* mutable_pointer(const Table& table) {
    return const_cast<Table*>(&table);
}

}  // namespace

const ze_command_queue_npu_dditable_ext_t& command_queue_table() {
    static const ze_command_queue_npu_dditable_ext_t table = {set_workload_type};
    return table;
}

const ze_context_npu_dditable_ext_t& context_table() {
    static const ze_context_npu_dditable_ext_t table = {set_context_properties, release_memory};
    return table;
}

const ze_driver_npu_dditable_ext_t& driver_table() {
    static const ze_driver_npu_dditable_ext_t table = {get_extension};
    return table;
}

const ze_device_npu_dditable_ext_t& device_table() {
    static const ze_device_npu_dditable_ext_t table = {zeDeviceGetRuntimeRequirements,
                                                       zeDeviceGetRuntimeRequirementsKey,
                                                       zeDeviceValidateRuntimeRequirements};
    return table;
}

const std::vector<Extension>& extensions() {
    static const auto* const all = new std::vector<Extension>(all_extensions());
    return *all;
}

void* find_extension(const std::string& name) {
    if (name.find(GRAPH) != std::string::npos) return mutable_pointer(graph_table());
    if (name == PROFILING) return mutable_pointer(profiling_table());
    if (name == COMMAND_QUEUE) return mutable_pointer(command_queue_table());
    if (name == CONTEXT) return mutable_pointer(context_table());
    if (name == DRIVER) return mutable_pointer(driver_table());
    if (name == DEVICE) return mutable_pointer(device_table());
    if (name == "zeCommandListGetNextCommandIdExp")
        return reinterpret_cast<void*>(zeCommandListGetNextCommandIdExp);
    if (name == "zeCommandListUpdateMutableCommandsExp") {
        return reinterpret_cast<void*>(zeCommandListUpdateMutableCommandsExp);
    }
    if (name == "zexDiskCacheSetSize") return reinterpret_cast<void*>(disk_cache_set_size);
    if (name == "zexDiskCacheGetSize") return reinterpret_cast<void*>(disk_cache_get_size);
    if (name == "zexDiskCacheGetDirectory") return reinterpret_cast<void*>(disk_cache_get_directory);
    if (name == "zexContextSetIdlePruningTimeout") return reinterpret_cast<void*>(set_idle_pruning_timeout);
    std::string known;
    for (const auto& extension : extensions()) known += (known.empty() ? "" : ", ") + extension.name;
    throw invalid_argument("extension", "'" + name + "'", "one with functions of its own: " + known);
}

// ---------------------------------------------------------------- profiling

namespace {

ze_result_t pool_create(ze_graph_handle_t hGraph, uint32_t count, ze_graph_profiling_pool_handle_t* phPool) {
    return guarded("pfnProfilingPoolCreate", [&] {
        const auto graph = lookup<Graph>(hGraph);
        require_nonnull(phPool, "phProfilingPool");
        *phPool = new_handle<ze_graph_profiling_pool_handle_t>(std::make_shared<ProfilingPool>(graph, count));
    });
}

ze_result_t pool_destroy(ze_graph_profiling_pool_handle_t hPool) {
    return guarded("pfnProfilingPoolDestroy", [&] {
        lookup<ProfilingPool>(hPool)->check_unused();
        const auto context = remove<ProfilingPool>(hPool)->graph->context;
        context->memory()->flush();
    });
}

ze_result_t query_create(ze_graph_profiling_pool_handle_t hPool, uint32_t index,
                         ze_graph_profiling_query_handle_t* phQuery) {
    return guarded("pfnProfilingQueryCreate", [&] {
        const auto pool = lookup<ProfilingPool>(hPool);
        require_nonnull(phQuery, "phProfilingQuery");
        *phQuery =
            new_handle<ze_graph_profiling_query_handle_t>(std::make_shared<ProfilingQuery>(pool, index));
    });
}

ze_result_t query_destroy(ze_graph_profiling_query_handle_t hQuery) {
    return guarded("pfnProfilingQueryDestroy", [&] { remove<ProfilingQuery>(hQuery); });
}

ze_result_t query_get_data(ze_graph_profiling_query_handle_t hQuery, uint32_t type, uint32_t* pSize,
                           uint8_t* pData) {
    return guarded("pfnProfilingQueryGetData", [&] {
        const std::string data = lookup<ProfilingQuery>(hQuery)->data(type);
        return write_bytes(pSize, pData, data.data(), data.size());
    });
}

ze_result_t get_properties(ze_device_handle_t hDevice, ze_device_profiling_data_properties_t* out) {
    return guarded("pfnDeviceGetProfilingDataProperties", [&] {
        lookup<Device>(hDevice);
        require_nonnull(out, "pDeviceProfilingDataProperties");
        out->extensionVersion = ZE_PROFILING_DATA_EXT_VERSION;
    });
}

// Decoding leaves no log.
ze_result_t log_get_string(ze_graph_profiling_query_handle_t hQuery, uint32_t* pSize, char* pLog) {
    return guarded("pfnProfilingLogGetString", [&] {
        lookup<ProfilingQuery>(hQuery);
        return write_text(pSize, pLog, "");
    });
}

}  // namespace

const ze_graph_profiling_dditable_ext_t& profiling_table() {
    static const ze_graph_profiling_dditable_ext_t table = {
        pool_create,    pool_destroy,   query_create,   query_destroy,
        query_get_data, get_properties, log_get_string,
    };
    return table;
}

}  // namespace softnpu
