// Sysman: the part of it that an NPU driver has.
#pragma once

#include "abi/ze.hpp"

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
