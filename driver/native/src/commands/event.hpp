// `ze_event_pool_handle_t` and `ze_event_handle_t`: signalled and reset by the host or by commands.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/used_indices.hpp"
#include "device/context.hpp"
#include "memory/records.hpp"
#include "session/waiting.hpp"

namespace softnpu {

class Recording;

class EventPool : public Object {
public:
    static constexpr Kind KIND = Kind::event_pool;
    EventPool(std::shared_ptr<Context> context, uint32_t count);

    const std::shared_ptr<Context> context;
    Noted noted() const override { return {0, 0, 0, context.get()}; }

    // Acquires the memory of an event. INVALID_ARGUMENT if it is out of range or in use.
    MemoryRef acquire(uint32_t index);
    void release(uint32_t index) { used_.release(index); }

private:
    UsedIndices used_;
    const std::shared_ptr<Block> block_;
};

class Event : public Object {
public:
    static constexpr Kind KIND = Kind::event;
    Event(std::shared_ptr<EventPool> pool, uint32_t index);

    void retire() override { pool_->release(index_); }

    void host_signal();
    void host_reset();
    bool query();
    // Waits for the commands in flight that signal this event; false when none is, or the time has passed.
    bool wait(uint64_t timeout);

    const MemoryRef& memory() const { return memory_; }
    Noted noted() const override { return {0, memory_.block->handle, memory_.offset, pool_.get()}; }
    const Context& context() const { return *pool_->context; }
    // A command of this recording signals the event.
    void add_signaller(std::weak_ptr<Recording> recording);
    // When something that only the host can see signals the event. It is asked whenever the host looks.
    enum class Tracked { now, later, never };
    void track(std::function<Tracked()> tracked);

private:
    using Recordings = std::set<std::weak_ptr<Recording>, std::owner_less<std::weak_ptr<Recording>>>;

    EventRecord record() const { return EventRecord(memory_.data()); }
    // Whether it is signalled, which the program is told.
    bool seen() const;
    bool will_be_signalled();
    // Whether what is tracked may still signal the event.
    bool look_at_tracked();

    const std::shared_ptr<EventPool> pool_;
    const uint32_t index_;
    const MemoryRef memory_;
    SpinBudget spin_;
    std::mutex mutex_;
    Recordings recordings_;
    std::function<Tracked()> tracked_;
    std::atomic<bool> tracks_{false};
};

}  // namespace softnpu
