// The properties of a device, which sysman tells too.
#pragma once

#include "abi/ze.hpp"
#include "session/driver.hpp"

namespace softnpu {

// All of it but `stype`, which says which form is asked for, and `pNext`.
void fill_properties(const DeviceInfo& info, ze_device_properties_t& out);

}  // namespace softnpu
