// The indices of a pool that are in use.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>

#include "base/error_info.hpp"

namespace softnpu {

class UsedIndices {
public:
    // `pool` and `entry` are for messages: an event pool has events.
    UsedIndices(const char* pool, const char* entry, uint32_t count)
        : pool_(pool), entry_(entry), count_(count) {}

    // INVALID_ARGUMENT out of range, `in_use` if it is taken.
    void acquire(uint32_t index, ze_result_t in_use) {
        std::lock_guard lock(mutex_);
        if (index >= count_)
            throw invalid_argument(pool_, format("index %u", index), format("0 to %u", count_ - 1));
        if (used_.insert(index).second) return;
        throw ErrorOf{in_use}(pool_, format("index %u: in use", index),
                              format("a free index from 0 to %u", count_ - 1),
                              format("destroy its %s first", entry_));
    }
    void release(uint32_t index) {
        std::lock_guard lock(mutex_);
        used_.erase(index);
    }
    // HANDLE_OBJECT_IN_USE while an index is in use.
    void check_none() {
        std::lock_guard lock(mutex_);
        if (used_.empty()) return;
        throw object_in_use(pool_, format("in use: %zu of its indices", used_.size()), "none",
                            format("destroy each %s first", entry_));
    }

private:
    const char* const pool_;
    const char* const entry_;
    const uint32_t count_;
    std::mutex mutex_;
    std::set<uint32_t> used_;
};

}  // namespace softnpu
