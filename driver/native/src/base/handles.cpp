#include "base/handles.hpp"

#include <unistd.h>

#include <mutex>

#include "base/environment.hpp"

namespace softnpu {

namespace {

constexpr uint64_t MARK = 5ull << 61;
constexpr uint32_t GENERATIONS = 1u << 24;
constexpr size_t MAX_SLOTS = 1u << 24;

uint32_t slot_of(uint64_t handle) { return handle & 0xffffff; }
uint32_t generation_of(uint64_t handle) { return handle >> 24 & 0xffffff; }
uint8_t epoch_of(uint64_t handle) { return handle >> 48 & 0xff; }

}  // namespace

const char* kind_name(Kind kind) {
    static const char* const names[] = {
        "object",         "driver",          "device",   "context",      "command queue", "command list",
        "fence",          "event pool",      "event",    "graph",        "build log",     "query network",
        "profiling pool", "profiling query", "engine",   "metric group", "metric",        "metric query pool",
        "metric query",   "metric streamer", "compiler", "executable",   "profile",       "compiler log"};
    return names[static_cast<size_t>(kind)];
}

uint64_t HandleTable::add(Kind kind, std::shared_ptr<Object> object) {
    std::unique_lock lock(mutex_);
    if (free_.empty()) {
        if (slots_.size() >= MAX_SLOTS) {
            throw out_of_host_memory("handles", format("%zu are in use", slots_.size()), "fewer",
                                     "destroy objects that are no longer used");
        }
        slots_.emplace_back();
        free_.reserve(slots_.capacity());  // releasing a slot must not fail
        free_.push_back(static_cast<uint32_t>(slots_.size() - 1));
    }
    const uint32_t index = free_.back();
    if (const auto owner = object->owner_.lock()) owner->owned_.insert(index);
    free_.pop_back();
    Slot& slot = slots_[index];
    slot.generation++;
    slot.kind = kind;
    slot.object = std::move(object);
    return handle_of(index);
}

uint64_t HandleTable::handle_of(size_t index) const {
    const Slot& slot = slots_[index];
    return MARK | static_cast<uint64_t>(slot.kind) << 56 | static_cast<uint64_t>(epoch_) << 48 |
           static_cast<uint64_t>(slot.generation) << 24 | index;
}

const HandleTable::Slot& HandleTable::find(Kind kind, uint64_t handle) const {
    const char* const wanted = kind_name(kind);
    if (handle == 0) {
        throw invalid_null_handle(wanted, "null handle", format("a live %s handle", wanted));
    }
    if (is_ours(handle) && epoch_of(handle) != epoch_) {
        // OpenVINO hides this reason
        log_once(format(
            "process %d: was forked off by one that uses the NPU, whose handles mean nothing here. Start "
            "processes before the first use of the NPU, or from scratch (multiprocessing: spawn)",
            static_cast<int>(getpid())));
        if (on_foreign != nullptr) on_foreign(wanted);
        throw uninitialized(
            wanted, format("created before this process (%d) was forked off", static_cast<int>(getpid())),
            format("a %s of this process", wanted),
            "initialise the driver again in the child, with zeInitDrivers");
    }
    const uint32_t index = slot_of(handle);
    if (!is_ours(handle) || static_cast<Kind>(handle >> 56 & 31) != kind || index >= slots_.size()) {
        throw invalid_argument(wanted, format("unknown handle %#lx", handle),
                               format("a live %s handle of this driver", wanted));
    }
    const Slot& slot = slots_[index];
    if (slot.object == nullptr || slot.generation != generation_of(handle)) {
        throw invalid_null_handle(wanted, "used after it, or what it was created through, was destroyed",
                                  format("a live %s", wanted));
    }
    return slot;
}

std::shared_ptr<Object> HandleTable::get(Kind kind, uint64_t handle) const {
    std::shared_lock lock(mutex_);
    return find(kind, handle).object;
}

void HandleTable::replace(Kind kind, uint64_t handle, std::shared_ptr<Object> object) {
    std::unique_lock lock(mutex_);
    find(kind, handle);
    const uint32_t index = slot_of(handle);
    if (const auto owner = object->owner_.lock()) owner->owned_.insert(index);
    slots_[index].object.swap(object);
    disown(*object, index);
}

std::vector<uint64_t> HandleTable::owned_by(Kind kind, const std::shared_ptr<Object>& owner) const {
    std::vector<uint64_t> handles;
    std::shared_lock lock(mutex_);
    for (const uint32_t index : owner->owned_)
        if (slots_[index].kind == kind) handles.push_back(handle_of(index));
    return handles;
}

std::shared_ptr<Object> HandleTable::remove(Kind kind, uint64_t handle) {
    std::shared_ptr<Object> object;
    {
        std::unique_lock lock(mutex_);
        object = find(kind, handle).object;
        clear(slot_of(handle));
    }
    remove_owned_by(object);
    object->retire();
    return object;
}

void HandleTable::remove_owned_by(const std::shared_ptr<Object>& owner) {
    for (const auto& child : take_owned_by(*owner)) {
        remove_owned_by(child);
        try {
            child->retire();
        } catch (const Error&) {
            // without a daemon there is nothing to destroy; the owner reports it
        }
    }
}

std::vector<std::shared_ptr<Object>> HandleTable::take_owned_by(Object& owner) {
    std::vector<std::shared_ptr<Object>> taken;
    std::unique_lock lock(mutex_);
    taken.reserve(owner.owned_.size());
    while (!owner.owned_.empty()) {
        const uint32_t index = *owner.owned_.begin();
        owner.owned_.erase(owner.owned_.begin());
        taken.push_back(slots_[index].object);
        clear(index);
    }
    return taken;
}

void HandleTable::clear(uint32_t index) {
    Slot& slot = slots_[index];
    disown(*slot.object, index);
    slot.object.reset();
    slot.kind = Kind::none;
    if (slot.generation + 1 < GENERATIONS) free_.push_back(index);
}

void HandleTable::disown(const Object& object, uint32_t index) {
    if (const auto owner = object.owner_.lock()) owner->owned_.erase(index);
}

}  // namespace softnpu
