// What the files of this folder use of each other: function tables of extensions, and functions that sysman
// shares.
#pragma once

#include "abi/graph.hpp"
#include "abi/npu.hpp"
#include "abi/zes.hpp"

extern "C" {
ze_result_t zeInit(uint32_t flags);
ze_result_t zeDriverGet(uint32_t* pCount, ze_driver_handle_t* phDrivers);
ze_result_t zeDeviceGet(ze_driver_handle_t hDriver, uint32_t* pCount, ze_device_handle_t* phDevices);
ze_result_t zeCommandListGetNextCommandIdExp(ze_command_list_handle_t hCommandList,
                                             const ze_mutable_exp_desc_t* desc, uint64_t* pCommandId);
ze_result_t zeCommandListUpdateMutableCommandsExp(ze_command_list_handle_t hCommandList,
                                                  const ze_mutable_exp_desc_t* desc);
}

namespace softnpu {

// The function tables of the extensions.
const ze_graph_dditable_ext_t& graph_table();
const ze_graph_profiling_dditable_ext_t& profiling_table();
const ze_command_queue_npu_dditable_ext_t& command_queue_table();
const ze_context_npu_dditable_ext_t& context_table();
const ze_driver_npu_dditable_ext_t& driver_table();

}  // namespace softnpu
