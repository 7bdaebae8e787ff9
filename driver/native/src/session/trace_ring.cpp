#include "session/trace_ring.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "interface/words.hpp"

namespace softnpu::trace {

namespace {

constexpr size_t NAMES_SIZE = size_t{schema::trace_names::COUNT} * schema::trace_names::SIZE;

}  // namespace

Ring::Ring(const Fd& file, uint32_t records) noexcept : records_(records) {
    struct stat found {};
    const bool sound = records != 0 && (records & (records - 1)) == 0;
    if (!sound || fstat(file.get(), &found) != 0 || static_cast<size_t>(found.st_size) < size()) return;
    void* const memory = mmap(nullptr, size(), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory != MAP_FAILED) memory_ = static_cast<uint8_t*>(memory);
}

size_t Ring::size() const { return NAMES_SIZE + size_t{records_} * sizeof(schema::TraceRecord); }

void Ring::write(schema::TraceRecord record, const char* name) noexcept {
    record.name = name == nullptr ? 0 : index_of(name);
    const uint64_t number = last_.fetch_add(1, std::memory_order_relaxed) + 1;
    record.begin = record.end = static_cast<uint32_t>(number);
    uint8_t* const at = memory_ + NAMES_SIZE + (number & (records_ - 1)) * sizeof record;
    constexpr size_t body = offsetof(schema::TraceRecord, kind), end = offsetof(schema::TraceRecord, end);
    store32(at, record.begin);
    // a reader that sees some of the body sees the number before it
    __atomic_thread_fence(__ATOMIC_RELEASE);
    std::memcpy(at + body, reinterpret_cast<const uint8_t*>(&record) + body, end - body);
    store32(at + end, record.end);
}

uint16_t Ring::index_of(const char* name) noexcept {
    std::lock_guard lock(mutex_);
    try {
        const auto known = names_.find(name);
        if (known != names_.end()) return known->second;
        if (names_.size() + 1 >= schema::trace_names::COUNT) return 0;
        const auto index = static_cast<uint16_t>(names_.size() + 1);
        const size_t length = std::min<size_t>(std::strlen(name), schema::trace_names::SIZE - 1);
        std::memcpy(memory_ + size_t{index} * schema::trace_names::SIZE, name, length);
        names_.emplace(name, index);
        return index;
    } catch (const std::bad_alloc&) {
        return 0;
    }
}

void Ring::close() noexcept {
    while (users != 0) sched_yield();
    munmap(memory_, size());
}

}  // namespace softnpu::trace
