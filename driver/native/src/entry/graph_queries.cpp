// The query functions of the graph extension: logs, supported layers, memory, compiler properties.
#include "entry/calls.hpp"

#include <tuple>

#include "graph/cache_options.hpp"
#include "graph/creation.hpp"
#include "interface/schema.hpp"
#include "session/driver.hpp"

namespace softnpu {

using namespace schema;

// ---------------------------------------------------------------- logs and queries

ze_result_t build_log_get_string(ze_graph_handle_t hGraph, uint32_t* pSize, char* pBuildLog) {
    return guarded("pfnBuildLogGetString", [&] {
        if (hGraph == nullptr) return write_text(pSize, pBuildLog, last_build_log());
        lookup<Graph>(hGraph);
        return write_text(pSize, pBuildLog, "");
    });
}

ze_result_t build_log_get_string2(ze_graph_build_log_handle_t hLog, uint32_t* pSize, char* pBuildLog) {
    return guarded("pfnBuildLogGetString2",
                   [&] { return write_text(pSize, pBuildLog, lookup<BuildLog>(hLog)->text); });
}

ze_result_t build_log_destroy(ze_graph_build_log_handle_t hLog) {
    return guarded("pfnBuildLogDestroy", [&] { remove<BuildLog>(hLog); });
}

ze_result_t query_network_create(ze_context_handle_t hContext, ze_device_handle_t hDevice,
                                 const ze_graph_desc_t* desc, ze_graph_query_network_handle_t* phQuery) {
    return guarded("pfnQueryNetworkCreate", [&] {
        const auto context = context_on(hContext, hDevice);
        require_nonnull(phQuery, "phGraphQueryNetwork");
        *phQuery = new_handle<ze_graph_query_network_handle_t>(
            with_build_failure([&] { return query_network(context, desc); }));
    });
}

ze_result_t query_network_create2(ze_context_handle_t hContext, ze_device_handle_t hDevice,
                                  const ze_graph_desc_2_t* desc, ze_graph_query_network_handle_t* phQuery) {
    return query_network_create(hContext, hDevice, reinterpret_cast<const ze_graph_desc_t*>(desc), phQuery);
}

ze_result_t query_network_destroy(ze_graph_query_network_handle_t hQuery) {
    return guarded("pfnQueryNetworkDestroy", [&] { remove<QueryNetwork>(hQuery); });
}

ze_result_t query_network_layers(ze_graph_query_network_handle_t hQuery, size_t* pSize, char* pLayers) {
    return guarded("pfnQueryNetworkGetSupportedLayers",
                   [&] { return write_text(pSize, pLayers, lookup<QueryNetwork>(hQuery)->layers); });
}

ze_result_t query_context_memory(ze_context_handle_t hContext, uint32_t type,
                                 ze_graph_memory_query_t* query) {
    return guarded("pfnQueryContextMemory", [&] {
        const auto context = lookup_live<Context>(hContext);
        require_nonnull(query, "query");
        if (type == ZE_GRAPH_QUERY_MEMORY_DDR) {
            std::tie(query->total, query->allocated) = context->query_memory();
        } else if (type == ZE_GRAPH_QUERY_MEMORY_DRIVER_CACHE ||
                   type == ZE_GRAPH_QUERY_MEMORY_PROGRAM_CACHE) {
            const auto options = softnpu::cache_options();
            query->total = options ? options->limit : 0;
            query->allocated = options ? bytes_in(*options) : 0;
        } else {
            throw invalid_argument("context memory", format("type %u", type),
                                   "1 (DDR), 2 (DRIVER_CACHE) or 3 (PROGRAM_CACHE)");
        }
    });
}

// ---------------------------------------------------------------- device and compiler

static void device_properties(Device& device, ze_device_graph_properties_t& out) {
    const CompilerInfo compiler = device.compiler();
    out.graphExtensionVersion = ZE_GRAPH_EXT_VERSION;
    out.compilerMajor = compiler.major;
    out.compilerMinor = compiler.minor;
    out.graphFormatsSupported = ZE_GRAPH_FORMAT_NGRAPH_LITE;
    out.maxOVOpsetVersionSupported = compiler.opset;
}

ze_result_t device_get_graph_properties(ze_device_handle_t hDevice, ze_device_graph_properties_t* out) {
    return guarded("pfnDeviceGetGraphProperties", [&] {
        const auto device = lookup_live<Device>(hDevice);
        require_nonnull(out, "pDeviceGraphProperties");
        device_properties(*device, *out);
    });
}

ze_result_t device_get_graph_properties2(ze_device_handle_t hDevice, ze_device_graph_properties_2_t* out) {
    return guarded("pfnDeviceGetGraphProperties2", [&] {
        const auto device = lookup_live<Device>(hDevice);
        require_nonnull(out, "pDeviceGraphProperties");
        device_properties(*device, out->base);
        out->elfVersion = {schema::blob::MAJOR, schema::blob::MINOR, 0};  // of our container
        out->runtimeVersion = device->info.platform == "3720" ? ze_graph_version_info_t{7, 0, 0}
                                                              : ze_graph_version_info_t{11, 13, 0};
    });
}

static void check_type(uint32_t type) {
    if (type == ZE_NPU_COMPILER_OPTIONS || type == ZE_NPU_DRIVER_OPTIONS) return;
    throw invalid_argument("options", format("type %u", type), "1 (COMPILER) or 2 (DRIVER)");
}

ze_result_t get_supported_options(ze_device_handle_t hDevice, uint32_t type, size_t* pSize, char* pOptions) {
    return guarded("pfnCompilerGetSupportedOptions", [&] {
        const auto device = lookup_live<Device>(hDevice);
        check_type(type);
        return write_text(pSize, pOptions,
                          type == ZE_NPU_DRIVER_OPTIONS ? std::string() : device->compiler().options);
    });
}

ze_result_t is_option_supported(ze_device_handle_t hDevice, uint32_t type, const char* pOption,
                                const char* pValue) {
    return guarded("pfnCompilerIsOptionSupported", [&] {
        const auto device = lookup_live<Device>(hDevice);
        check_type(type);
        require_nonnull(pOption, "pOption");
        if (type == ZE_NPU_COMPILER_OPTIONS && device->supports(pOption, pValue)) return ZE_RESULT_SUCCESS;
        throw unsupported_feature(
            std::string("option ") + pOption,
            pValue == nullptr ? "not supported" : "value '" + std::string(pValue) + "' is not supported",
            "an option of the compiler");
    });
}

}  // namespace softnpu
