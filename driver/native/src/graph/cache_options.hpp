// Which cache of compiled models a program asks for: the environment rule of Intel's driver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace softnpu {

struct CacheOptions {
    std::string directory;  // absolute
    uint64_t limit = 0;     // bytes of all files in it
};

// None when `ZE_INTEL_NPU_CACHE_DIR` is set but empty.
std::optional<CacheOptions> cache_options();
// Bytes of all files in the directory.
uint64_t bytes_in(const CacheOptions& options);

}  // namespace softnpu
