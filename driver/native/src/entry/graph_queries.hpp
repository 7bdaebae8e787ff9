// The functions of the graph extension that ask: logs, which layers, how much memory, what the compiler has.
#pragma once

#include "abi/graph.hpp"
#include "device/context.hpp"
#include "entry/restoration.hpp"
#include "session/runtime.hpp"

namespace softnpu {

// The context, which has to be one of this device.
inline std::shared_ptr<Context> context_on(ze_context_handle_t hContext, ze_device_handle_t hDevice) {
    auto context = lookup_live<Context>(hContext);
    context->check_device(*lookup_live<Device>(hDevice));
    return context;
}

ze_result_t build_log_get_string(ze_graph_handle_t hGraph, uint32_t* pSize, char* pBuildLog);
ze_result_t build_log_get_string2(ze_graph_build_log_handle_t hLog, uint32_t* pSize, char* pBuildLog);
ze_result_t build_log_destroy(ze_graph_build_log_handle_t hLog);
ze_result_t query_network_create(ze_context_handle_t hContext, ze_device_handle_t hDevice,
                                 const ze_graph_desc_t* desc, ze_graph_query_network_handle_t* phQuery);
ze_result_t query_network_create2(ze_context_handle_t hContext, ze_device_handle_t hDevice,
                                  const ze_graph_desc_2_t* desc, ze_graph_query_network_handle_t* phQuery);
ze_result_t query_network_destroy(ze_graph_query_network_handle_t hQuery);
ze_result_t query_network_layers(ze_graph_query_network_handle_t hQuery, size_t* pSize, char* pLayers);
ze_result_t query_context_memory(ze_context_handle_t hContext, uint32_t type, ze_graph_memory_query_t* query);
ze_result_t device_get_graph_properties(ze_device_handle_t hDevice, ze_device_graph_properties_t* out);
ze_result_t device_get_graph_properties2(ze_device_handle_t hDevice, ze_device_graph_properties_2_t* out);
ze_result_t get_supported_options(ze_device_handle_t hDevice, uint32_t type, size_t* pSize, char* pOptions);
ze_result_t is_option_supported(ze_device_handle_t hDevice, uint32_t type, const char* pOption,
                                const char* pValue);

}  // namespace softnpu
