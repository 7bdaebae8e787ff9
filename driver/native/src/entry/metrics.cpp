// Metric groups, queries and streamers.
#include <algorithm>
#include <cstring>

#include "device/metrics.hpp"
#include "entry/calls.hpp"

using namespace softnpu;

namespace {

// The groups of a device, made at the first call.
const std::vector<uint64_t>& groups_of(const std::shared_ptr<Device>& device) {
    return device->metric_groups([&] {
        std::vector<uint64_t> handles;
        static_assert(std::size(schema::METRIC_GROUPS) == std::size(schema::METRIC_GROUPS_3720));
        const auto& known =
            device->info.platform == "3720" ? schema::METRIC_GROUPS_3720 : schema::METRIC_GROUPS;
        for (const schema::MetricGroupInfo& each : known) {
            const auto domain = static_cast<uint32_t>(handles.size()) + 1;
            auto group = std::make_shared<MetricGroup>(device, each, domain);
            for (uint32_t number = 0; number < group->group.count; ++number) {
                group->metric_handles.push_back(runtime().handles.add(
                    Kind::metric, std::make_shared<Metric>(group, group->group.metrics[number])));
            }
            handles.push_back(runtime().handles.add(Kind::metric_group, std::move(group)));
        }
        return handles;
    });
}

void check_enabled() {
    if (!metrics_enabled()) {
        throw unsupported_feature("metrics", "ZET_ENABLE_METRICS is unset, empty or 0",
                                  "1, or any text that does not begin with 0",
                                  "set it before the program starts");
    }
}

// The size for a caller who passes 0. Too small a size is refused with UNKNOWN.
void write_report(size_t* size, uint8_t* out, const std::string& data) {
    require_nonnull(size, "pRawDataSize");
    if (*size == 0 || *size > data.size()) {
        const bool asked = *size == 0;
        *size = data.size();
        if (asked) return;
    }
    if (out == nullptr) return;
    if (*size < data.size()) {
        throw unknown_error("metric query", format("room for %zu bytes", *size),
                            format("%zu bytes", data.size()), "ask for the size first, with 0");
    }
    std::memcpy(out, data.data(), data.size());
}

void append_snapshot(ze_command_list_handle_t hList, const MetricQuery& query, MemoryRef memory,
                     const Events& events) {
    const auto list = lookup<CommandList>(hList);
    list->context->check_session(query.context());
    list->append(metric_snapshot(memory), events);
}

}  // namespace

// ---------------------------------------------------------------- groups

ZE_EXPORT ze_result_t zetMetricGroupGet(ze_device_handle_t hDevice, uint32_t* pCount,
                                        zet_metric_group_handle_t* phMetricGroups) {
    return guarded(__func__, [&] {
        const auto device = lookup<Device>(hDevice);
        check_enabled();
        const std::vector<uint64_t>& groups = groups_of(device);
        return write_array(pCount, phMetricGroups, groups.size(), [&](uint32_t index, auto& out) {
            out = reinterpret_cast<zet_metric_group_handle_t>(groups[index]);
        });
    });
}

ZE_EXPORT ze_result_t zetMetricGroupGetProperties(zet_metric_group_handle_t hMetricGroup,
                                                  zet_metric_group_properties_t* pProperties) {
    return guarded(__func__, [&] {
        const auto group = lookup<MetricGroup>(hMetricGroup);
        require_nonnull(pProperties, "pProperties");
        copy_text(pProperties->name, group->group.name);
        copy_text(pProperties->description, group->group.description);
        pProperties->samplingType =
            ZET_METRIC_GROUP_SAMPLING_TYPE_FLAG_EVENT_BASED | ZET_METRIC_GROUP_SAMPLING_TYPE_FLAG_TIME_BASED;
        pProperties->domain = group->domain;
        pProperties->metricCount = group->group.count;
    });
}

ZE_EXPORT ze_result_t zetMetricGet(zet_metric_group_handle_t hMetricGroup, uint32_t* pCount,
                                   zet_metric_handle_t* phMetrics) {
    return guarded(__func__, [&] {
        const auto group = lookup<MetricGroup>(hMetricGroup);
        return write_array(pCount, phMetrics, group->metric_handles.size(), [&](uint32_t index, auto& out) {
            out = reinterpret_cast<zet_metric_handle_t>(group->metric_handles[index]);
        });
    });
}

ZE_EXPORT ze_result_t zetMetricGetProperties(zet_metric_handle_t hMetric,
                                             zet_metric_properties_t* pProperties) {
    return guarded(__func__, [&] {
        const auto& metric = lookup<Metric>(hMetric)->metric;
        require_nonnull(pProperties, "pProperties");
        copy_text(pProperties->name, metric.name);
        copy_text(pProperties->description, metric.description);
        copy_text(pProperties->component, "NPU");
        pProperties->tierNumber = 1;
        pProperties->metricType = metric.type;
        pProperties->resultType = ZET_VALUE_TYPE_UINT64;
        copy_text(pProperties->resultUnits, metric.units);
    });
}

ZE_EXPORT ze_result_t zetMetricGroupCalculateMetricValues(zet_metric_group_handle_t hMetricGroup,
                                                          uint32_t type, size_t rawDataSize,
                                                          const uint8_t* pRawData,
                                                          uint32_t* pMetricValueCount,
                                                          zet_typed_value_t* pMetricValues) {
    return guarded(__func__, [&] {
        const auto group = lookup<MetricGroup>(hMetricGroup);
        require_nonnull(pRawData, "pRawData");
        require_nonnull(pMetricValueCount, "pMetricValueCount");
        if (type > ZET_METRIC_GROUP_CALCULATION_TYPE_MAX_METRIC_VALUES) {
            throw invalid_enumeration("calculation type", format("%u", type),
                                      "METRIC_VALUES (0) or MAX_METRIC_VALUES (1)");
        }
        const uint32_t metrics = group->group.count;
        const size_t values = rawDataSize / group->report_size() * metrics;
        const auto value = [&](size_t index) {
            uint64_t number;
            std::memcpy(&number, pRawData + index * sizeof number, sizeof number);
            return number;
        };
        if (type == ZET_METRIC_GROUP_CALCULATION_TYPE_METRIC_VALUES) {
            return write_array(pMetricValueCount, pMetricValues, values, [&](uint32_t index, auto& out) {
                out = {ZET_VALUE_TYPE_UINT64, value(index)};
            });
        }
        if (*pMetricValueCount != 0 && *pMetricValueCount != metrics) {
            throw invalid_size("metric values", format("room for %u", *pMetricValueCount),
                               format("%u, one for each metric", metrics));
        }
        return write_array(pMetricValueCount, pMetricValues, metrics, [&](uint32_t metric, auto& out) {
            out = {ZET_VALUE_TYPE_UINT64, 0};
            for (size_t index = metric; index < values; index += metrics)
                out.value = std::max(out.value, value(index));
        });
    });
}

ZE_EXPORT ze_result_t zetContextActivateMetricGroups(ze_context_handle_t hContext, ze_device_handle_t hDevice,
                                                     uint32_t count,
                                                     zet_metric_group_handle_t* phMetricGroups) {
    return guarded(__func__, [&] {
        const auto context = lookup<Context>(hContext);
        const auto device = lookup<Device>(hDevice);
        if (!metrics_enabled()) throw uninitialized("metrics", "not enabled", "ZET_ENABLE_METRICS=1");
        if (count > 0 && phMetricGroups == nullptr)
            throw invalid_size("metric groups", format("%u without an array", count), "an array with them");
        for (const uint64_t handle : groups_of(device))
            lookup<MetricGroup>(reinterpret_cast<zet_metric_group_handle_t>(handle))
                ->deactivate(context.get());
        // the others are active all the same, as with the real driver
        std::string refused;
        for (uint32_t index = 0; index < count; ++index) {
            const auto group = lookup<MetricGroup>(phMetricGroups[index]);
            context->check_session(group->device->connection);
            if (group->device != device || group->active_beside(context.get())) {
                refused = group->group.name;
            } else {
                group->activate(context);
            }
        }
        if (!refused.empty()) {
            throw invalid_argument("metric group " + refused,
                                   "of another device, or active in another context",
                                   "a free group of this device");
        }
    });
}

// ---------------------------------------------------------------- queries

ZE_EXPORT ze_result_t zetMetricQueryPoolCreate(ze_context_handle_t hContext, ze_device_handle_t hDevice,
                                               zet_metric_group_handle_t hMetricGroup,
                                               const zet_metric_query_pool_desc_t* desc,
                                               zet_metric_query_pool_handle_t* phMetricQueryPool) {
    return guarded(__func__, [&] {
        const auto context = lookup<Context>(hContext);
        const auto device = lookup<Device>(hDevice);
        const auto group = lookup<MetricGroup>(hMetricGroup);
        require_nonnull(desc, "desc");
        require_nonnull(phMetricQueryPool, "phMetricQueryPool");
        if (desc->type > ZET_METRIC_QUERY_POOL_TYPE_EXECUTION) {
            throw invalid_enumeration("metric query pool", format("type %u", desc->type),
                                      "PERFORMANCE (0) or EXECUTION (1)");
        }
        context->check_device(*device);
        *phMetricQueryPool = new_handle<zet_metric_query_pool_handle_t>(
            std::make_shared<MetricQueryPool>(context, group, desc->count));
    });
}

ZE_EXPORT ze_result_t zetMetricQueryPoolDestroy(zet_metric_query_pool_handle_t hMetricQueryPool) {
    return guarded(__func__, [&] {
        lookup<MetricQueryPool>(hMetricQueryPool)->check_unused();
        const auto context = remove<MetricQueryPool>(hMetricQueryPool)->context;
        context->memory()->flush();
    });
}

ZE_EXPORT ze_result_t zetMetricQueryCreate(zet_metric_query_pool_handle_t hMetricQueryPool, uint32_t index,
                                           zet_metric_query_handle_t* phMetricQuery) {
    return guarded(__func__, [&] {
        const auto pool = lookup<MetricQueryPool>(hMetricQueryPool);
        require_nonnull(phMetricQuery, "phMetricQuery");
        *phMetricQuery = new_handle<zet_metric_query_handle_t>(std::make_shared<MetricQuery>(pool, index));
    });
}

ZE_EXPORT ze_result_t zetMetricQueryDestroy(zet_metric_query_handle_t hMetricQuery) {
    return guarded(__func__, [&] { remove<MetricQuery>(hMetricQuery); });
}

ZE_EXPORT ze_result_t zetMetricQueryReset(zet_metric_query_handle_t hMetricQuery) {
    return guarded(__func__, [&] { lookup<MetricQuery>(hMetricQuery)->reset(); });
}

ZE_EXPORT ze_result_t zetMetricQueryGetData(zet_metric_query_handle_t hMetricQuery, size_t* pRawDataSize,
                                            uint8_t* pRawData) {
    return guarded(__func__,
                   [&] { write_report(pRawDataSize, pRawData, lookup<MetricQuery>(hMetricQuery)->data()); });
}

ZE_EXPORT ze_result_t zetCommandListAppendMetricQueryBegin(ze_command_list_handle_t hCommandList,
                                                           zet_metric_query_handle_t hMetricQuery) {
    return guarded(__func__, [&] {
        const auto query = lookup<MetricQuery>(hMetricQuery);
        append_snapshot(hCommandList, *query, query->begin(), {});
    });
}

ZE_EXPORT ze_result_t zetCommandListAppendMetricQueryEnd(ze_command_list_handle_t hCommandList,
                                                         zet_metric_query_handle_t hMetricQuery,
                                                         ze_event_handle_t hSignalEvent,
                                                         uint32_t numWaitEvents,
                                                         ze_event_handle_t* phWaitEvents) {
    return guarded(__func__, [&] {
        const auto query = lookup<MetricQuery>(hMetricQuery);
        const Events events = events_of(hSignalEvent, numWaitEvents, phWaitEvents);
        append_snapshot(hCommandList, *query, query->end(), events);
    });
}

// ---------------------------------------------------------------- streamers

ZE_EXPORT ze_result_t zetMetricStreamerOpen(ze_context_handle_t hContext, ze_device_handle_t hDevice,
                                            zet_metric_group_handle_t hMetricGroup,
                                            zet_metric_streamer_desc_t* pDesc,
                                            ze_event_handle_t hNotificationEvent,
                                            zet_metric_streamer_handle_t* phMetricStreamer) {
    return guarded(__func__, [&] {
        const auto context = lookup<Context>(hContext);
        const auto device = lookup<Device>(hDevice);
        const auto group = lookup<MetricGroup>(hMetricGroup);
        require_nonnull(pDesc, "pDesc");
        require_nonnull(phMetricStreamer, "phMetricStreamer");
        context->check_device(*device);
        const auto event = hNotificationEvent == nullptr ? nullptr : lookup<Event>(hNotificationEvent);
        if (event != nullptr) context->check_session(event->context());
        const auto streamer = std::make_shared<MetricStreamer>(context, group, pDesc->samplingPeriod);
        if (event != nullptr && pDesc->notifyEveryNReports != 0) {
            event->track([weak = std::weak_ptr(streamer), reports = pDesc->notifyEveryNReports] {
                const auto living = weak.lock();
                if (living == nullptr || living->retired()) return Event::Tracked::never;
                return living->available() >= reports ? Event::Tracked::now : Event::Tracked::later;
            });
        }
        *phMetricStreamer = new_handle<zet_metric_streamer_handle_t>(streamer);
    });
}

ZE_EXPORT ze_result_t zetMetricStreamerClose(zet_metric_streamer_handle_t hMetricStreamer) {
    return guarded(__func__, [&] { remove<MetricStreamer>(hMetricStreamer); });
}

ZE_EXPORT ze_result_t zetMetricStreamerReadData(zet_metric_streamer_handle_t hMetricStreamer,
                                                uint32_t maxReportCount, size_t* pRawDataSize,
                                                uint8_t* pRawData) {
    return guarded(__func__, [&] {
        const auto streamer = lookup<MetricStreamer>(hMetricStreamer);
        require_nonnull(pRawDataSize, "pRawDataSize");
        const size_t report = streamer->group->report_size();
        if (*pRawDataSize == 0 || pRawData == nullptr) {
            const size_t most = *pRawDataSize == 0 ? SIZE_MAX : *pRawDataSize;
            *pRawDataSize = std::min(most, streamer->available() * report);
            return;
        }
        const std::string data = streamer->read(std::min<uint64_t>(maxReportCount, *pRawDataSize / report));
        std::memcpy(pRawData, data.data(), data.size());
        *pRawDataSize = data.size();
    });
}
