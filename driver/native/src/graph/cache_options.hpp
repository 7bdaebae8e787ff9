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
// Bytes that the cache may take: what a call has set, unless ZE_INTEL_NPU_CACHE_SIZE has changed since.
uint64_t cache_limit();
void set_cache_limit(uint64_t limit);
// Bytes of all files in the directory.
uint64_t bytes_in(const CacheOptions& options);

}  // namespace softnpu
