// The layout of a queue's ring: see section 8 of docs/interface.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace softnpu::ring {

constexpr size_t HEADER = 512;
constexpr size_t TAIL = 0;
constexpr size_t COMPLETED = 64;
constexpr size_t WAITERS = 72;
constexpr size_t ASLEEP = 76;
constexpr size_t RESULT = 128;
constexpr size_t TEXT_SIZE = 132;
constexpr size_t FAILED = 136;
constexpr size_t LOST = 144;
constexpr size_t TEXT = 192;
constexpr size_t TEXT_MAX = 320;

struct Slot {
    uint64_t sequence;
    uint64_t buffer;
    uint64_t offset;
    uint32_t size;
    uint32_t flags;
    uint64_t fence;
    uint64_t fence_offset;
    uint64_t ticket;
    uint32_t result;  // written by the engine
    uint32_t reserved;
};
static_assert(sizeof(Slot) == 64 && offsetof(Slot, result) == 56);

constexpr size_t size_of(size_t slots) { return HEADER + slots * sizeof(Slot); }

}  // namespace softnpu::ring
