#include "commands/queue.hpp"

#include <sched.h>

#include <cstring>

#include "commands/fence.hpp"
#include "commands/list.hpp"
#include "commands/recording.hpp"
#include "commands/ring.hpp"
#include "sync/waiting.hpp"
#include "wire/fault_wire.hpp"

namespace softnpu {

namespace {

const char* priority_name(uint32_t priority) {
    switch (priority) {
        case ZE_COMMAND_QUEUE_PRIORITY_NORMAL: return "normal";
        case ZE_COMMAND_QUEUE_PRIORITY_LOW: return "low";
        case ZE_COMMAND_QUEUE_PRIORITY_HIGH: return "high";
        default:
            throw error(ZE_RESULT_ERROR_INVALID_ENUMERATION, "command queue", format("priority %u", priority),
                        "0 (normal), 1 (low) or 2 (high)");
    }
}

}  // namespace

std::shared_ptr<CommandQueue> CommandQueue::create(const std::shared_ptr<Context>& context,
                                                   const QueueOptions& options) {
    MapWriter request("queue_create");
    request.put("context", context->handle()).put("slots", options.slots);
    request.put("priority", std::string_view(priority_name(options.priority)));
    if (options.turbo) request.put_bool("turbo", true);
    auto [handle, ring] = context->memory()->create_queue(request, ring::size_of(options.slots));
    return std::make_shared<CommandQueue>(context, options, handle, std::move(ring));
}

CommandQueue::CommandQueue(std::shared_ptr<Context> of, const QueueOptions& options, uint64_t handle,
                           std::shared_ptr<Block> ring)
    : Object(of),
      context(std::move(of)),
      synchronous(options.mode == ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS),
      spin(options.turbo),
      handle_(handle),
      ring_(std::move(ring)),
      slots_(options.slots) {}

void CommandQueue::retire() {
    {
        std::lock_guard lock(mutex_);
        retired_ = true;
    }
    wake_sleepers();
    if (!context->retired() && !context->connection->is_lost()) {
        // answered when the engine runs nothing of this queue any more: then everything may go
        context->connection->request(MapWriter("queue_destroy").put("queue", handle_), "ok");
    }
    std::deque<Flight> flight;
    std::vector<RetiredSignal> signals;
    {
        std::lock_guard lock(mutex_);
        flight.swap(flight_);
        signals.swap(signals_);
    }
    for (auto& signal : signals) context->give_signal(std::move(signal.place));
    flight.clear();
    context->memory()->flush();
}

void CommandQueue::execute(const std::vector<std::shared_ptr<CommandList>>& lists,
                           const std::shared_ptr<Fence>& fence) {
    if (context->connection->has_ended()) throw context->connection->lost_error();
    // as the real driver does: the work runs, and then the fence of another queue is an error
    Fence* const own = fence != nullptr && fence->queue.get() == this ? fence.get() : nullptr;
    std::vector<Recorded> recorded;
    for (const auto& list : lists) {
        if (auto entry = list->recorded()) recorded.push_back(std::move(*entry));
    }
    if (recorded.size() > slots_) {
        throw error(ZE_RESULT_ERROR_INVALID_SIZE, "command lists", format("%zu", recorded.size()),
                    format("at most the %u slots of the queue", slots_));
    }
    if (!recorded.empty()) {
        submit(recorded, own);
    } else if (own != nullptr) {
        own->signal_now();
    }
    if (fence.get() != own) {
        throw error(ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT, "fence", "created for another queue",
                    "a fence of this queue");
    }
    if (synchronous) synchronize(FOREVER);
}

void CommandQueue::submit(const std::vector<Recorded>& recorded, Fence* fence) {
    std::vector<Flight> ended;
    {
        std::unique_lock lock(mutex_);
        ended = take_ended();
        make_room(lock, recorded.size());
        if (retired_) {
            throw error(ZE_RESULT_ERROR_INVALID_NULL_HANDLE, "command queue", "destroyed meanwhile",
                        "a live queue");
        }
        fill_slots(recorded, fence);
    }
    // the tail is stored before we look whether the engine sleeps; it stores `asleep` before it looks at the
    // tail
    full_fence();
    if (load32(ring() + ring::ASLEEP) != 0) context->ring_doorbell();
}

bool CommandQueue::synchronize(uint64_t timeout) {
    const uint64_t tail = tail_;
    const auto over = [&] { return is_over(tail); };
    const auto doze = [&](uint64_t ns) { sleep(tail, ns); };
    if (!wait_until(over, doze, timeout, *context->connection, spin)) return false;
    release_ended();
    check_alive(tail);
    const uint64_t failed = load64(ring() + ring::FAILED);
    if (told_ < failed && failed <= tail) throw failure(load32(ring() + ring::RESULT), failed);
    return true;
}

void CommandQueue::set_workload(bool background) {
    MapWriter request("queue_workload");
    request.put("queue", handle_).put_bool("background", background);
    context->connection->request(request, "ok");
}

bool CommandQueue::has_ended(uint64_t sequence) const { return load64(ring() + ring::COMPLETED) >= sequence; }

void CommandQueue::check_alive(uint64_t sequence) {
    if (retired_) {
        throw error(ZE_RESULT_ERROR_INVALID_NULL_HANDLE, "command queue", "destroyed meanwhile",
                    "a live queue");
    }
    if (load32(ring() + ring::LOST) != 0) throw failure(ZE_RESULT_ERROR_DEVICE_LOST, sequence);
}

Error CommandQueue::failure(uint32_t result, uint64_t sequence) {
    uint64_t told = told_;
    while (told < sequence && !told_.compare_exchange_weak(told, sequence)) {
    }
    Fault fault{static_cast<ze_result_t>(result),
                format("submission %llu", static_cast<unsigned long long>(sequence)),
                "it failed",
                {},
                {}};
    // the ring has the reason of the last failure only; but a lost queue has one reason for all
    if (load64(ring() + ring::FAILED) == sequence || result == ZE_RESULT_ERROR_DEVICE_LOST) {
        const size_t size = std::min<size_t>(load32(ring() + ring::TEXT_SIZE), ring::TEXT_MAX);
        const std::string text(reinterpret_cast<const char*>(ring() + ring::TEXT), size);
        try {
            const Fault left = decode_fault(unpack(text, "fault in the ring"));
            if (left.result == fault.result) fault = left;
        } catch (const Error&) {
            // cut by a newer failure: the result alone has to do
        }
    }
    return Error(std::move(fault));
}

void CommandQueue::retire_signal(Place place, uint64_t sequence) {
    {
        std::lock_guard lock(mutex_);
        if (!is_over(sequence)) {
            signals_.push_back({sequence, std::move(place)});
            return;
        }
    }
    context->give_signal(std::move(place));
}

// Waits until so many slots are free, however long: the device ends every submission some day. Called with
// the lock, which is given up while waiting.
void CommandQueue::make_room(std::unique_lock<std::mutex>& lock, size_t count) {
    for (;;) {
        const uint64_t tail = tail_;
        if (tail + count <= slots_) return;
        const uint64_t needed = tail + count - slots_;
        if (is_over(needed)) return;
        lock.unlock();
        const auto over = [&] { return is_over(needed); };
        const auto doze = [&](uint64_t ns) { sleep(needed, ns); };
        wait_until(over, doze, FOREVER, *context->connection, spin);
        lock.lock();
    }
}

void CommandQueue::fill_slots(const std::vector<Recorded>& recorded, Fence* fence) {
    uint64_t sequence = tail_;
    const uint64_t last = sequence + recorded.size();
    if (fence != nullptr) fence->arm(last);
    for (const auto& entry : recorded) {
        ++sequence;
        ring::Slot slot{};
        slot.sequence = sequence;
        slot.buffer = entry.buffer->handle;
        slot.size = entry.size;
        if (fence != nullptr && sequence == last) {
            slot.fence = fence->place().block->handle;
            slot.fence_offset = fence->place().offset;
        }
        std::memcpy(ring() + ring::HEADER + ((sequence - 1) & (slots_ - 1)) * sizeof slot, &slot,
                    sizeof slot);
        entry.recording->submitted(weak_from_this(), sequence);
        flight_.push_back({sequence, entry.buffer, entry.holds, entry.recording});
    }
    tail_ = sequence;
    store64(ring() + ring::TAIL, sequence);
}

std::vector<CommandQueue::Flight> CommandQueue::take_ended() {
    std::vector<Flight> ended;
    const uint64_t done = load64(ring() + ring::COMPLETED);
    while (!flight_.empty() && flight_.front().sequence <= done) {
        ended.push_back(std::move(flight_.front()));
        flight_.pop_front();
    }
    for (size_t index = 0; index < signals_.size();) {
        if (signals_[index].sequence <= done) {
            context->give_signal(std::move(signals_[index].place));
            signals_[index] = std::move(signals_.back());
            signals_.pop_back();
        } else {
            ++index;
        }
    }
    return ended;
}

void CommandQueue::release_ended() {
    std::vector<Flight> ended;
    {
        std::lock_guard lock(mutex_);
        ended = take_ended();
    }
    ended.clear();
    context->memory()->flush();
}

void CommandQueue::sleep(uint64_t sequence, uint64_t timeout) {
    ++sleepers_;
    if (!retired_) {
        add32(ring() + ring::WAITERS, 1);
        full_fence();
        const uint64_t done = load64(ring() + ring::COMPLETED);
        if (done < sequence) futex_wait(ring() + ring::COMPLETED, static_cast<uint32_t>(done), timeout);
        add32(ring() + ring::WAITERS, -1);
    }
    --sleepers_;
}

void CommandQueue::wake_sleepers() {
    while (sleepers_ != 0) {
        futex_wake(ring() + ring::COMPLETED);
        sched_yield();
    }
}

}  // namespace softnpu
