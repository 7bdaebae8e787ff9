// The layouts of the ABI, checked when this is compiled: a 64-bit Linux with 8-byte pointers.
#include "abi/extensions.hpp"
#include "abi/tools.hpp"

// members of a base class come first, in every ABI of a 64-bit Linux
#pragma GCC diagnostic ignored "-Winvalid-offsetof"

#define SIZE_IS(type, size) static_assert(sizeof(type) == (size), #type)
#define AT(type, field, offset) static_assert(offsetof(type, field) == (offset), #type "." #field)

SIZE_IS(void*, 8);
SIZE_IS(ze_init_driver_type_desc_t, 24);
SIZE_IS(ze_driver_properties_t, 40);
AT(ze_driver_properties_t, driverVersion, 32);
SIZE_IS(ze_driver_extension_properties_t, 260);
SIZE_IS(ze_device_properties_t, 368);
AT(ze_device_properties_t, maxMemAllocSize, 40);
AT(ze_device_properties_t, numSlices, 72);
AT(ze_device_properties_t, timerResolution, 80);
AT(ze_device_properties_t, uuid, 96);
AT(ze_device_properties_t, name, 112);
SIZE_IS(ze_mutable_command_list_exp_properties_t, 24);
SIZE_IS(ze_device_compute_properties_t, 88);
AT(ze_device_compute_properties_t, subGroupSizes, 52);
SIZE_IS(ze_device_image_properties_t, 56);
AT(ze_device_image_properties_t, maxImageBufferSize, 32);
SIZE_IS(ze_device_memory_properties_t, 296);
AT(ze_device_memory_properties_t, totalSize, 32);
SIZE_IS(ze_device_memory_access_properties_t, 40);
SIZE_IS(ze_device_external_memory_properties_t, 32);
SIZE_IS(ze_command_queue_group_properties_t, 40);
AT(ze_command_queue_group_properties_t, maxMemoryFillPatternSize, 24);
SIZE_IS(ze_pci_ext_properties_t, 48);
AT(ze_pci_ext_properties_t, maxBandwidth, 40);
SIZE_IS(ze_external_memory_fd_t, 24);
AT(ze_external_memory_fd_t, fd, 20);
SIZE_IS(ze_external_memmap_sysmem_ext_desc_t, 32);
SIZE_IS(ze_memory_allocation_properties_t, 40);
SIZE_IS(ze_command_queue_desc_t, 40);
AT(ze_command_queue_desc_t, mode, 28);
SIZE_IS(ze_command_list_desc_t, 24);
SIZE_IS(ze_copy_region_t, 24);
SIZE_IS(ze_event_pool_desc_t, 24);
SIZE_IS(ze_event_desc_t, 32);
SIZE_IS(ze_mutable_graph_argument_exp_desc_t, 40);
AT(ze_mutable_graph_argument_exp_desc_t, pArgValue, 32);

SIZE_IS(zes_device_properties_t, 776);
AT(zes_device_properties_t, numSubdevices, 384);
AT(zes_device_properties_t, driverVersion, 708);
SIZE_IS(zes_engine_properties_t, 32);

SIZE_IS(ze_device_graph_properties_t, 32);
SIZE_IS(ze_device_graph_properties_2_t, 56);
AT(ze_device_graph_properties_2_t, elfVersion, 32);
SIZE_IS(ze_graph_desc_t, 48);
SIZE_IS(ze_graph_desc_2_t, 56);
SIZE_IS(ze_graph_properties_3_t, 32);
SIZE_IS(ze_graph_argument_properties_t, 312);
AT(ze_graph_argument_properties_t, dims, 276);
AT(ze_graph_argument_properties_t, deviceLayout, 308);
SIZE_IS(ze_graph_argument_properties_2_t, 320);
AT(ze_graph_argument_properties_2_t, quantReverseScale, 312);
AT(ze_graph_argument_properties_3_t, dims_count, 320);
AT(ze_graph_argument_properties_3_t, debug_friendly_name, 324);
AT(ze_graph_argument_properties_3_t, associated_tensor_names_count, 8772);
SIZE_IS(ze_graph_argument_properties_3_t, 8776);
AT(ze_graph_argument_metadata_t, data_type, 276);
AT(ze_graph_argument_metadata_t, shape, 280);
AT(ze_graph_argument_metadata_t, tensor_names, 348);
SIZE_IS(ze_graph_argument_metadata_t, 8800);
SIZE_IS(ze_graph_argument_value_strides_t, 40);
SIZE_IS(ze_graph_dditable_ext_t, 31 * 8);
AT(ze_graph_dditable_ext_t, pfnCreate2, 16 * 8);
AT(ze_graph_dditable_ext_t, pfnGraphInitialize, 22 * 8);
AT(ze_graph_dditable_ext_t, pfnCreate3, 25 * 8);
SIZE_IS(ze_profiling_layer_info, 368);
AT(ze_profiling_layer_info, status, 308);
AT(ze_profiling_layer_info, fused_layer_id, 336);
SIZE_IS(ze_profiling_task_info, 344);
SIZE_IS(ze_graph_profiling_dditable_ext_t, 7 * 8);
SIZE_IS(ze_command_queue_desc_npu_ext_2_t, 24);
SIZE_IS(ze_context_properties_npu_ext_t, 24);
SIZE_IS(ze_driver_extension_npu_ext_t, 40);
SIZE_IS(ze_runtime_requirements_graph_desc_t, 24);
SIZE_IS(ze_validate_runtime_requirements_output_t, 24);

SIZE_IS(zet_metric_group_properties_t, 544);
AT(zet_metric_group_properties_t, samplingType, 528);
SIZE_IS(zet_metric_properties_t, 1056);
AT(zet_metric_properties_t, resultUnits, 796);
SIZE_IS(zet_typed_value_t, 16);
SIZE_IS(zet_metric_query_pool_desc_t, 24);
SIZE_IS(zet_metric_streamer_desc_t, 24);
