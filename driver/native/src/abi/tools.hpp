// Tools and sysman: the parts supported by an NPU driver.
#pragma once

#include "abi/ze.hpp"

// ---------------------------------------------------------------- metric groups

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

// ---------------------------------------------------------------- sysman

using zes_driver_handle_t = ze_driver_handle_t;
using zes_device_handle_t = ze_device_handle_t;
using zes_engine_handle_t = struct _zes_engine_handle_t*;

enum : uint32_t { ZES_ENGINE_GROUP_COMPUTE_ALL = 1 };

struct zes_device_properties_t : ze_base_properties_t {
    ze_device_properties_t core;
    uint32_t numSubdevices;
    char serialNumber[64];
    char boardNumber[64];
    char brandName[64];
    char modelName[64];
    char vendorName[64];
    char driverVersion[64];
};

struct zes_engine_properties_t : ze_base_properties_t {
    uint32_t type;
    ze_bool_t onSubdevice;
    uint32_t subdeviceId;
};

struct zes_engine_stats_t {
    uint64_t activeTime;
    uint64_t timestamp;
};
