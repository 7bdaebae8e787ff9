#include "commands/event.hpp"

#include <algorithm>

#include "commands/progress.hpp"
#include "session/check.hpp"
#include "session/waiting.hpp"

namespace softnpu {

EventPool::EventPool(std::shared_ptr<Context> of, uint32_t count)
    : Object(of),
      context(std::move(of)),
      used_("event pool", "event", count),
      block_(context->memory()->allocate(schema::memory_kind::CONTROL,
                                         static_cast<size_t>(count) * RECORD_SIZE)) {}

MemoryRef EventPool::acquire(uint32_t index) {
    used_.acquire(index, ZE_RESULT_ERROR_INVALID_ARGUMENT);
    return {block_, static_cast<size_t>(index) * RECORD_SIZE};
}

Event::Event(std::shared_ptr<EventPool> pool, uint32_t index)
    : Object(pool), pool_(std::move(pool)), index_(index), memory_(pool_->acquire(index)) {
    record().initialize();
}

void Event::host_signal() {
    if (check::on()) check::event(*this, "signal");
    record().host_signal();
    // a queue that waits for an event is not asleep: the doorbell is rung in any case
    pool_->context->ring_doorbell();
}

void Event::host_reset() {
    if (check::on()) check::event(*this, "reset");
    record().host_reset();
}

bool Event::query() {
    look_at_tracked();
    return seen();
}

bool Event::seen() const {
    const bool signalled = record().signalled();
    if (signalled && check::on()) check::event(*this, "seen");
    return signalled;
}

bool Event::wait(uint64_t timeout) {
    EventRecord word = record();
    const auto over = [&] {
        const bool tracks = look_at_tracked();
        return word.signalled() || (!tracks && !will_be_signalled());
    };
    // it may never be signalled, which nothing wakes it for: a submission that fails
    const auto sleep = [&](uint64_t ns, const OtherEnds&) { word.sleep(std::min(ns, SHORT_SLICE_NS)); };
    wait_until(over, sleep, timeout, *pool_->context->connection, spin_);
    return seen();
}

void Event::track(std::function<Tracked()> tracked) {
    std::lock_guard lock(mutex_);
    tracked_ = std::move(tracked);
    tracks_ = true;
}

bool Event::look_at_tracked() {
    if (!tracks_ || record().signalled()) return tracks_;
    std::function<Tracked()> tracked;
    {
        std::lock_guard lock(mutex_);
        tracked = tracked_;
    }
    const Tracked when = tracked();
    if (when == Tracked::now) host_signal();
    if (when == Tracked::never) tracks_ = false;
    return tracks_;
}

bool Event::will_be_signalled() {
    std::vector<std::shared_ptr<Recording>> recordings;
    {
        std::lock_guard lock(mutex_);
        for (const auto& entry : recordings_) {
            if (auto recording = entry.lock()) recordings.push_back(std::move(recording));
        }
    }
    for (const auto& recording : recordings) {
        if (recording->in_flight()) return true;
    }
    return false;
}

void Event::add_signaller(std::weak_ptr<Recording> recording) {
    std::lock_guard lock(mutex_);
    for (auto entry = recordings_.begin(); entry != recordings_.end();) {
        entry = entry->expired() ? recordings_.erase(entry) : std::next(entry);
    }
    recordings_.insert(std::move(recording));
}

}  // namespace softnpu
