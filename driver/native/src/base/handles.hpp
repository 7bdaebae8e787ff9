// Handles of the API: numbers that look like pointers and are never dereferenced.
//
//   bits 61-63  5, unlike any user-space address
//   bits 56-60  kind of the object
//   bits 48-55  how often this process was forked off: a parent's handle means nothing in its child
//   bits 24-47  generation of the slot: a stale handle never means another object
//   bits  0-23  slot
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "base/error_info.hpp"

namespace softnpu {

enum class Kind : uint8_t {
    none,
    driver,
    device,
    context,
    command_queue,
    command_list,
    fence,
    event_pool,
    event,
    graph,
    build_log,
    query_network,
    profiling_pool,
    profiling_query,
    engine,
    metric_group,
    metric,
    metric_query_pool,
    metric_query,
    metric_streamer,
    compiler,
    executable,
    profile,
    compiler_log,
};

const char* kind_name(Kind kind);

// Base of all objects with handles. Each ends with its `owner`, through which it was created.
class Object {
public:
    explicit Object(std::weak_ptr<Object> owner = {}) : owner_(std::move(owner)) {}
    virtual ~Object() = default;
    Object(const Object&) = delete;
    Object& operator=(const Object&) = delete;

    // Called once, without any lock, when the object is destroyed by its handle or with its owner.
    virtual void retire() {}

    // For `softnpu check`: its number in the daemon, 0 if it has none there; where an event lies; the object
    // with which it ends.
    struct Noted {
        uint64_t number = 0;
        uint64_t memory = 0;
        uint64_t offset = 0;
        const Object* parent = nullptr;
    };
    virtual Noted noted() const { return {}; }

private:
    friend class HandleTable;

    const std::weak_ptr<Object> owner_;
    std::set<uint32_t> owned_;  // slots of objects created through it; guarded by the table's lock
};

class HandleTable {
public:
    explicit HandleTable(uint8_t epoch) : epoch_(epoch) {}

    uint64_t add(Kind kind, std::shared_ptr<Object> object);
    // Throws INVALID_NULL_HANDLE, INVALID_ARGUMENT, or UNINITIALIZED for a parent's handle.
    std::shared_ptr<Object> get(Kind kind, uint64_t handle) const;
    // Puts another object behind a live handle; a stale handle is an error.
    void replace(Kind kind, uint64_t handle, std::shared_ptr<Object> object);
    // Returns the handles of this kind that were created through `owner`.
    std::vector<uint64_t> owned_by(Kind kind, const std::shared_ptr<Object>& owner) const;
    // Removes the handle, and those of all objects created through its object.
    std::shared_ptr<Object> remove(Kind kind, uint64_t handle);
    // Removes the objects that were created through `owner`.
    void remove_owned_by(const std::shared_ptr<Object>& owner);

    // Called when a process uses a handle of the one off which it was forked.
    void (*on_foreign)(const char* kind) = nullptr;

    // Whether bits 61-63 mark the number as a handle.
    static bool is_ours(uint64_t handle) { return handle >> 61 == 5; }

private:
    struct Slot {
        std::shared_ptr<Object> object;
        uint32_t generation = 0;
        Kind kind = Kind::none;
    };

    const Slot& find(Kind kind, uint64_t handle) const;
    uint64_t handle_of(size_t index) const;
    std::vector<std::shared_ptr<Object>> take_owned_by(Object& owner);
    void clear(uint32_t index);
    static void disown(const Object& object, uint32_t index);

    const uint8_t epoch_;
    mutable std::shared_mutex mutex_;
    std::vector<Slot> slots_;
    std::vector<uint32_t> free_;
};

}  // namespace softnpu
