// Declarations shared by the files of this folder.
#pragma once

#include <string>
#include <vector>

#include "abi/extensions.hpp"
#include "abi/functions.hpp"
#include "base/output.hpp"
#include "commands/event.hpp"
#include "commands/list.hpp"
#include "device/context.hpp"
#include "entry/boundary.hpp"
#include "session/runtime.hpp"

namespace softnpu {

// ---------------------------------------------------------------- sessions and their objects

// The driver handle of this process; connects at first, and again after the daemon was lost.
uint64_t open_driver();

// Connects to the next daemon if the last one has died and there is one: see restoration.cpp.
void restore_session();

// The object of a handle through which others are created.
template <class T, class H>
std::shared_ptr<T> lookup_live(H handle) {
    restore_session();
    return lookup<T>(handle);
}

// The context, which must be on this device.
inline std::shared_ptr<Context> context_on(ze_context_handle_t hContext, ze_device_handle_t hDevice) {
    auto context = lookup_live<Context>(hContext);
    context->check_device(*lookup_live<Device>(hDevice));
    return context;
}

// ---------------------------------------------------------------- events of an append

inline std::vector<std::shared_ptr<Event>> wait_events(uint32_t count, ze_event_handle_t* handles) {
    std::vector<std::shared_ptr<Event>> events;
    for (uint32_t index = 0; index < count; ++index) events.push_back(lookup<Event>(handles[index]));
    return events;
}

// INVALID_SIZE for a count without an array.
inline Events events_of(ze_event_handle_t signal, uint32_t count, ze_event_handle_t* waits) {
    if (count > 0 && waits == nullptr) {
        throw invalid_size("wait events", format("%u without an array", count), "an array with the events");
    }
    return {wait_events(count, waits), signal == nullptr ? nullptr : lookup<Event>(signal)};
}

// ---------------------------------------------------------------- descriptors and properties

// The options of a queue. INVALID_ARGUMENT for another queue group, INVALID_ENUMERATION for modes that do not
// exist or exclude each other.
QueueOptions queue_options(const ze_command_queue_desc_t& desc);

// Fills all but `stype`, which selects the form, and `pNext`.
void fill_properties(const DeviceInfo& info, ze_device_properties_t& out);

// ---------------------------------------------------------------- extensions

// The function tables of the extensions.
const ze_graph_dditable_ext_t& graph_table();
const ze_graph_profiling_dditable_ext_t& profiling_table();
const ze_command_queue_npu_dditable_ext_t& command_queue_table();
const ze_context_npu_dditable_ext_t& context_table();
const ze_driver_npu_dditable_ext_t& driver_table();
const ze_device_npu_dditable_ext_t& device_table();

struct Extension {
    std::string name;
    uint32_t version;
};
// The list of zeDriverGetExtensionProperties, including the aliases of the graph extension.
const std::vector<Extension>& extensions();
// The function table of an extension, or a function by its name. INVALID_ARGUMENT for an unknown one.
void* find_extension(const std::string& name);

// ---------------------------------------------------------------- what an NPU does not have: loader.cpp

extern "C" ze_result_t softnpu_unsupported();

// ---------------------------------------------------------------- graph extension: graph_queries.cpp

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
