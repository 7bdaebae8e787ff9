// The functions of the API that this driver implements, by object.
#pragma once

#include "abi/extensions.hpp"
#include "abi/tools.hpp"

extern "C" {
// driver
ze_result_t zeInit(uint32_t flags);
ze_result_t zeInitDrivers(uint32_t* pCount, ze_driver_handle_t* phDrivers, ze_init_driver_type_desc_t* desc);
ze_result_t zeDriverGet(uint32_t* pCount, ze_driver_handle_t* phDrivers);
ze_result_t zeDriverGetApiVersion(ze_driver_handle_t hDriver, uint32_t* version);
ze_result_t zeDriverGetProperties(ze_driver_handle_t hDriver, ze_driver_properties_t* pProperties);
ze_result_t zeDriverGetIpcProperties(ze_driver_handle_t hDriver, ze_driver_ipc_properties_t* pProperties);
ze_result_t zeDriverGetExtensionProperties(ze_driver_handle_t hDriver, uint32_t* pCount,
                                           ze_driver_extension_properties_t* pProperties);
ze_result_t zeDriverGetExtensionFunctionAddress(ze_driver_handle_t hDriver, const char* name,
                                                void** ppFunctionAddress);
ze_result_t zeDriverGetLastErrorDescription(ze_driver_handle_t hDriver, const char** ppString);

// device
ze_result_t zeDeviceGet(ze_driver_handle_t hDriver, uint32_t* pCount, ze_device_handle_t* phDevices);
ze_result_t zeDeviceGetSubDevices(ze_device_handle_t hDevice, uint32_t* pCount,
                                  ze_device_handle_t* phSubdevices);
ze_result_t zeDeviceGetProperties(ze_device_handle_t hDevice, ze_device_properties_t* pProperties);
ze_result_t zeDeviceGetComputeProperties(ze_device_handle_t hDevice,
                                         ze_device_compute_properties_t* pProperties);
ze_result_t zeDeviceGetImageProperties(ze_device_handle_t hDevice, ze_device_image_properties_t* pProperties);
ze_result_t zeDeviceGetMemoryProperties(ze_device_handle_t hDevice, uint32_t* pCount,
                                        ze_device_memory_properties_t* pProperties);
ze_result_t zeDeviceGetMemoryAccessProperties(ze_device_handle_t hDevice,
                                              ze_device_memory_access_properties_t* pProperties);
ze_result_t zeDeviceGetExternalMemoryProperties(ze_device_handle_t hDevice,
                                                ze_device_external_memory_properties_t* pProperties);
ze_result_t zeDeviceGetP2PProperties(ze_device_handle_t hDevice, ze_device_handle_t hPeerDevice,
                                     ze_device_p2p_properties_t* pProperties);
ze_result_t zeDeviceGetCommandQueueGroupProperties(ze_device_handle_t hDevice, uint32_t* pCount,
                                                   ze_command_queue_group_properties_t* pProperties);
ze_result_t zeDeviceGetStatus(ze_device_handle_t hDevice);
ze_result_t zeDeviceGetGlobalTimestamps(ze_device_handle_t hDevice, uint64_t* hostTimestamp,
                                        uint64_t* deviceTimestamp);
ze_result_t zeDevicePciGetPropertiesExt(ze_device_handle_t hDevice, ze_pci_ext_properties_t* pProperties);
ze_result_t zeDeviceGetRuntimeRequirements(ze_device_handle_t hDevice, const void* pObjDesc, size_t* pSize,
                                           char* pRequirements);
ze_result_t zeDeviceGetRuntimeRequirementsKey(ze_device_handle_t hDevice, const char** pKey);
ze_result_t zeDeviceValidateRuntimeRequirements(ze_device_handle_t hDevice, const char* pRequirements,
                                                ze_validate_runtime_requirements_output_t* pOut);

// context and memory
ze_result_t zeContextCreate(ze_driver_handle_t hDriver, const ze_context_desc_t* desc,
                            ze_context_handle_t* phContext);
ze_result_t zeContextDestroy(ze_context_handle_t hContext);
ze_result_t zeContextGetStatus(ze_context_handle_t hContext);
ze_result_t zeMemAllocHost(ze_context_handle_t hContext, const ze_host_mem_alloc_desc_t* desc, size_t size,
                           size_t alignment, void** pptr);
ze_result_t zeMemAllocDevice(ze_context_handle_t hContext, const ze_device_mem_alloc_desc_t* desc,
                             size_t size, size_t alignment, ze_device_handle_t hDevice, void** pptr);
ze_result_t zeMemAllocShared(ze_context_handle_t hContext, const ze_device_mem_alloc_desc_t* device_desc,
                             const ze_host_mem_alloc_desc_t* host_desc, size_t size, size_t alignment,
                             ze_device_handle_t hDevice, void** pptr);
ze_result_t zeMemFree(ze_context_handle_t hContext, void* ptr);
ze_result_t zeMemGetAllocProperties(ze_context_handle_t hContext, const void* ptr,
                                    ze_memory_allocation_properties_t* pProperties,
                                    ze_device_handle_t* phDevice);
ze_result_t zeMemGetAddressRange(ze_context_handle_t hContext, const void* ptr, void** pBase, size_t* pSize);

// queues, fences, events
ze_result_t zeCommandQueueCreate(ze_context_handle_t hContext, ze_device_handle_t hDevice,
                                 const ze_command_queue_desc_t* desc,
                                 ze_command_queue_handle_t* phCommandQueue);
ze_result_t zeCommandQueueDestroy(ze_command_queue_handle_t hCommandQueue);
ze_result_t zeCommandQueueExecuteCommandLists(ze_command_queue_handle_t hCommandQueue,
                                              uint32_t numCommandLists,
                                              ze_command_list_handle_t* phCommandLists,
                                              ze_fence_handle_t hFence);
ze_result_t zeCommandQueueSynchronize(ze_command_queue_handle_t hCommandQueue, uint64_t timeout);
ze_result_t zeFenceCreate(ze_command_queue_handle_t hCommandQueue, const ze_fence_desc_t* desc,
                          ze_fence_handle_t* phFence);
ze_result_t zeFenceDestroy(ze_fence_handle_t hFence);
ze_result_t zeFenceHostSynchronize(ze_fence_handle_t hFence, uint64_t timeout);
ze_result_t zeFenceQueryStatus(ze_fence_handle_t hFence);
ze_result_t zeFenceReset(ze_fence_handle_t hFence);
ze_result_t zeEventPoolCreate(ze_context_handle_t hContext, const ze_event_pool_desc_t* desc,
                              uint32_t numDevices, ze_device_handle_t* phDevices,
                              ze_event_pool_handle_t* phEventPool);
ze_result_t zeEventPoolDestroy(ze_event_pool_handle_t hEventPool);
ze_result_t zeEventCreate(ze_event_pool_handle_t hEventPool, const ze_event_desc_t* desc,
                          ze_event_handle_t* phEvent);
ze_result_t zeEventDestroy(ze_event_handle_t hEvent);
ze_result_t zeEventHostSignal(ze_event_handle_t hEvent);
ze_result_t zeEventHostReset(ze_event_handle_t hEvent);
ze_result_t zeEventQueryStatus(ze_event_handle_t hEvent);
ze_result_t zeEventHostSynchronize(ze_event_handle_t hEvent, uint64_t timeout);

// command lists
ze_result_t zeCommandListCreate(ze_context_handle_t hContext, ze_device_handle_t hDevice,
                                const ze_command_list_desc_t* desc, ze_command_list_handle_t* phCommandList);
ze_result_t zeCommandListCreateImmediate(ze_context_handle_t hContext, ze_device_handle_t hDevice,
                                         const ze_command_queue_desc_t* altdesc,
                                         ze_command_list_handle_t* phCommandList);
ze_result_t zeCommandListDestroy(ze_command_list_handle_t hCommandList);
ze_result_t zeCommandListClose(ze_command_list_handle_t hCommandList);
ze_result_t zeCommandListReset(ze_command_list_handle_t hCommandList);
ze_result_t zeCommandListIsImmediate(ze_command_list_handle_t hCommandList, ze_bool_t* pIsImmediate);
ze_result_t zeCommandListHostSynchronize(ze_command_list_handle_t hCommandList, uint64_t timeout);
ze_result_t zeCommandListAppendBarrier(ze_command_list_handle_t hCommandList, ze_event_handle_t hSignalEvent,
                                       uint32_t numWaitEvents, ze_event_handle_t* phWaitEvents);
ze_result_t zeCommandListAppendMemoryCopy(ze_command_list_handle_t hCommandList, void* dstptr,
                                          const void* srcptr, size_t size, ze_event_handle_t hSignalEvent,
                                          uint32_t numWaitEvents, ze_event_handle_t* phWaitEvents);
ze_result_t zeCommandListAppendMemoryCopyRegion(ze_command_list_handle_t hCommandList, void* dstptr,
                                                const ze_copy_region_t* dstRegion, uint32_t dstPitch,
                                                uint32_t dstSlicePitch, const void* srcptr,
                                                const ze_copy_region_t* srcRegion, uint32_t srcPitch,
                                                uint32_t srcSlicePitch, ze_event_handle_t hSignalEvent,
                                                uint32_t numWaitEvents, ze_event_handle_t* phWaitEvents);
ze_result_t zeCommandListAppendMemoryFill(ze_command_list_handle_t hCommandList, void* ptr,
                                          const void* pattern, size_t pattern_size, size_t size,
                                          ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
                                          ze_event_handle_t* phWaitEvents);
ze_result_t zeCommandListAppendWriteGlobalTimestamp(ze_command_list_handle_t hCommandList, uint64_t* dstptr,
                                                    ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
                                                    ze_event_handle_t* phWaitEvents);
ze_result_t zeCommandListAppendSignalEvent(ze_command_list_handle_t hCommandList, ze_event_handle_t hEvent);
ze_result_t zeCommandListAppendWaitOnEvents(ze_command_list_handle_t hCommandList, uint32_t numEvents,
                                            ze_event_handle_t* phEvents);
ze_result_t zeCommandListAppendEventReset(ze_command_list_handle_t hCommandList, ze_event_handle_t hEvent);
ze_result_t zeCommandListGetNextCommandIdExp(ze_command_list_handle_t hCommandList,
                                             const ze_mutable_exp_desc_t* desc, uint64_t* pCommandId);
ze_result_t zeCommandListUpdateMutableCommandsExp(ze_command_list_handle_t hCommandList,
                                                  const ze_mutable_exp_desc_t* desc);

// sysman
ze_result_t zesInit(uint32_t flags);
ze_result_t zesDriverGet(uint32_t* pCount, zes_driver_handle_t* phDrivers);
ze_result_t zesDeviceGet(zes_driver_handle_t hDriver, uint32_t* pCount, zes_device_handle_t* phDevices);
ze_result_t zesDeviceGetProperties(zes_device_handle_t hDevice, zes_device_properties_t* pProperties);
ze_result_t zesDeviceEnumEngineGroups(zes_device_handle_t hDevice, uint32_t* pCount,
                                      zes_engine_handle_t* phEngine);
ze_result_t zesEngineGetProperties(zes_engine_handle_t hEngine, zes_engine_properties_t* pProperties);
ze_result_t zesEngineGetActivity(zes_engine_handle_t hEngine, zes_engine_stats_t* pStats);

// tools
ze_result_t zetMetricGroupGet(ze_device_handle_t hDevice, uint32_t* pCount,
                              zet_metric_group_handle_t* phMetricGroups);
ze_result_t zetMetricGroupGetProperties(zet_metric_group_handle_t hMetricGroup,
                                        zet_metric_group_properties_t* pProperties);
ze_result_t zetMetricGroupCalculateMetricValues(zet_metric_group_handle_t hMetricGroup, uint32_t type,
                                                size_t rawDataSize, const uint8_t* pRawData,
                                                uint32_t* pMetricValueCount,
                                                zet_typed_value_t* pMetricValues);
ze_result_t zetMetricGet(zet_metric_group_handle_t hMetricGroup, uint32_t* pCount,
                         zet_metric_handle_t* phMetrics);
ze_result_t zetMetricGetProperties(zet_metric_handle_t hMetric, zet_metric_properties_t* pProperties);
ze_result_t zetContextActivateMetricGroups(ze_context_handle_t hContext, ze_device_handle_t hDevice,
                                           uint32_t count, zet_metric_group_handle_t* phMetricGroups);
ze_result_t zetMetricQueryPoolCreate(ze_context_handle_t hContext, ze_device_handle_t hDevice,
                                     zet_metric_group_handle_t hMetricGroup,
                                     const zet_metric_query_pool_desc_t* desc,
                                     zet_metric_query_pool_handle_t* phMetricQueryPool);
ze_result_t zetMetricQueryPoolDestroy(zet_metric_query_pool_handle_t hMetricQueryPool);
ze_result_t zetMetricQueryCreate(zet_metric_query_pool_handle_t hMetricQueryPool, uint32_t index,
                                 zet_metric_query_handle_t* phMetricQuery);
ze_result_t zetMetricQueryDestroy(zet_metric_query_handle_t hMetricQuery);
ze_result_t zetMetricQueryReset(zet_metric_query_handle_t hMetricQuery);
ze_result_t zetMetricQueryGetData(zet_metric_query_handle_t hMetricQuery, size_t* pRawDataSize,
                                  uint8_t* pRawData);
ze_result_t zetCommandListAppendMetricQueryBegin(ze_command_list_handle_t hCommandList,
                                                 zet_metric_query_handle_t hMetricQuery);
ze_result_t zetCommandListAppendMetricQueryEnd(ze_command_list_handle_t hCommandList,
                                               zet_metric_query_handle_t hMetricQuery,
                                               ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
                                               ze_event_handle_t* phWaitEvents);
ze_result_t zetMetricStreamerOpen(ze_context_handle_t hContext, ze_device_handle_t hDevice,
                                  zet_metric_group_handle_t hMetricGroup, zet_metric_streamer_desc_t* pDesc,
                                  ze_event_handle_t hNotificationEvent,
                                  zet_metric_streamer_handle_t* phMetricStreamer);
ze_result_t zetMetricStreamerClose(zet_metric_streamer_handle_t hMetricStreamer);
ze_result_t zetMetricStreamerReadData(zet_metric_streamer_handle_t hMetricStreamer, uint32_t maxReportCount,
                                      size_t* pRawDataSize, uint8_t* pRawData);
}
