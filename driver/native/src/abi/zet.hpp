// Tools: the part of it that an NPU driver has, metric groups.
#pragma once

#include "abi/ze.hpp"

using zet_metric_group_handle_t = struct _zet_metric_group_handle_t*;
using zet_metric_handle_t = struct _zet_metric_handle_t*;
using zet_metric_streamer_handle_t = struct _zet_metric_streamer_handle_t*;
using zet_metric_query_pool_handle_t = struct _zet_metric_query_pool_handle_t*;
using zet_metric_query_handle_t = struct _zet_metric_query_handle_t*;

enum : uint32_t {
    ZET_METRIC_GROUP_SAMPLING_TYPE_FLAG_EVENT_BASED = 1,
    ZET_METRIC_GROUP_SAMPLING_TYPE_FLAG_TIME_BASED = 2,
    ZET_METRIC_GROUP_CALCULATION_TYPE_METRIC_VALUES = 0,
    ZET_METRIC_GROUP_CALCULATION_TYPE_MAX_METRIC_VALUES = 1,
    ZET_METRIC_QUERY_POOL_TYPE_EXECUTION = 1,
    ZET_VALUE_TYPE_UINT64 = 1,
};

struct zet_metric_group_properties_t : ze_base_properties_t {
    char name[256];
    char description[256];
    uint32_t samplingType;
    uint32_t domain;
    uint32_t metricCount;
};

struct zet_metric_properties_t : ze_base_properties_t {
    char name[256];
    char description[256];
    char component[256];
    uint32_t tierNumber;
    uint32_t metricType;
    uint32_t resultType;
    char resultUnits[256];
};

struct zet_typed_value_t {
    uint32_t type;
    uint64_t value;
};

struct zet_metric_query_pool_desc_t : ze_base_properties_t {
    uint32_t type;
    uint32_t count;
};

struct zet_metric_streamer_desc_t : ze_base_properties_t {
    uint32_t notifyEveryNReports;
    uint32_t samplingPeriod;
};
