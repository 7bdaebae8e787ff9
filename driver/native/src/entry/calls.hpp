// What the files of this folder use of each other.
#pragma once

#include <string>
#include <vector>

#include "abi/functions.hpp"
#include "base/output.hpp"
#include "entry/boundary.hpp"
#include "session/runtime.hpp"

namespace softnpu {

struct DeviceInfo;
struct QueueOptions;

// The function tables of the extensions.
const ze_graph_dditable_ext_t& graph_table();
const ze_graph_profiling_dditable_ext_t& profiling_table();
const ze_command_queue_npu_dditable_ext_t& command_queue_table();
const ze_context_npu_dditable_ext_t& context_table();
const ze_driver_npu_dditable_ext_t& driver_table();

struct Extension {
    std::string name;
    uint32_t version;
};
// What zeDriverGetExtensionProperties lists, the aliases of the graph extension included.
const std::vector<Extension>& extensions();
// The function table of an extension, or a function by its name. INVALID_ARGUMENT for an unknown one.
void* find_extension(const std::string& name);

// The options of a queue. INVALID_ARGUMENT for another queue group, INVALID_ENUMERATION for modes that do not
// exist or exclude each other.
QueueOptions queue_options(const ze_command_queue_desc_t& desc);

// Fills all but `stype`, which selects the form, and `pNext`.
void fill_properties(const DeviceInfo& info, ze_device_properties_t& out);

}  // namespace softnpu
