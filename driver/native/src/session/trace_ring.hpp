// A ring of trace records that this process writes: section 12.2 of docs/interface.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "base/fd.hpp"
#include "interface/schema.hpp"

namespace softnpu::trace {

// The object is never destroyed, because any thread may be about to use it; its memory is given back.
class Ring {
public:
    // Maps the file; `valid` says whether that worked.
    Ring(const Fd& file, uint32_t records) noexcept;
    bool valid() const { return memory_ != nullptr; }

    // Writes one record, in place of the oldest. `name` lives as long as the process, or is null.
    void write(schema::TraceRecord record, const char* name) noexcept;
    // Unmaps the memory once no thread writes.
    void close() noexcept;

    std::atomic<uint32_t> users{0};

private:
    uint16_t index_of(const char* name) noexcept;
    size_t size() const;

    uint8_t* memory_ = nullptr;
    const uint32_t records_;
    std::atomic<uint64_t> last_{0};
    std::mutex mutex_;
    std::unordered_map<const char*, uint16_t> names_;
};

}  // namespace softnpu::trace
