#include "commands/queue.hpp"

#include <sched.h>

#include <cstring>

#include "commands/fence.hpp"
#include "commands/list.hpp"
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
      slots_(options.slots),
      progress_(std::make_shared<Progress>(ring_)) {}

void CommandQueue::retire() {
    {
        std::lock_guard lock(mutex_);
        retired_ = true;
    }
    wake_sleepers();
    if (!context->retired() && !context->connection->is_lost()) {
        try {
            // answered when the engine runs nothing of this queue any more: then everything may go
            context->connection->request(MapWriter("queue_destroy").put("queue", handle_), "ok");
        } catch (const Error&) {
            if (!context->connection->is_lost()) keep_what_runs();
            throw;
        }
    }
    progress_->set_gone();
    std::deque<Flight> flight;
    {
        std::lock_guard lock(mutex_);
        flight.swap(flight_);
    }
    flight.clear();
    context->memory()->flush();
}

// The daemon could not be asked: the queue runs on, so what it uses stays until the context ends.
void CommandQueue::keep_what_runs() {
    std::lock_guard lock(mutex_);
    context->keep(ring_);
    context->keep(std::make_shared<std::deque<Flight>>(std::move(flight_)));
    flight_.clear();
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
    for (;;) {
        std::vector<Flight> ended;
        {
            std::lock_guard lock(mutex_);
            check_not_retired();
            ended = take_ended();
            if (has_room(recorded.size())) {
                fill_slots(recorded, fence);
                break;
            }
        }
        ended.clear();
        wait_for_room(recorded.size());
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
    std::vector<Flight> ended;
    std::optional<std::pair<Failure, size_t>> untold;
    {
        std::lock_guard lock(mutex_);
        check_not_retired();
        ended = take_ended();
        untold = outcomes_.take_untold(tail);
    }
    ended.clear();
    context->memory()->flush();
    check_alive(tail);
    if (untold) throw failure(untold->first, untold->second);
    return true;
}

void CommandQueue::set_workload(bool background) {
    MapWriter request("queue_workload");
    request.put("queue", handle_).put_bool("background", background);
    context->connection->request(request, "ok");
}

void CommandQueue::check_not_retired() const {
    if (!retired_) return;
    throw error(ZE_RESULT_ERROR_INVALID_NULL_HANDLE, "command queue", "destroyed meanwhile", "a live queue");
}

void CommandQueue::check_alive(uint64_t sequence) const {
    check_not_retired();
    if (load32(ring() + ring::LOST) != 0) throw failure({sequence, ZE_RESULT_ERROR_DEVICE_LOST});
}

void CommandQueue::throw_failure(const Execution& execution) {
    std::lock_guard lock(mutex_);
    if (!outcomes_.was_read(execution.last)) {
        // the ring of a destroyed queue may be another's memory by now
        check_not_retired();
        // the fence is signalled a moment before the ring counts its submission as ended
        read_results(execution.last);
    }
    if (!execution.failure) return;
    outcomes_.told(execution.failure->sequence);
    throw failure(*execution.failure);
}

Error CommandQueue::failure(Failure failed, size_t more) const {
    ErrorInfo fault{failed.result,
                format("submission %llu", static_cast<unsigned long long>(failed.sequence)),
                "it failed",
                {},
                {}};
    // the ring has the reason of the last failure only; but a lost queue has one reason for all
    const bool has_reason = load64(ring() + ring::FAILED) == failed.sequence;
    if (!retired_ && (has_reason || failed.result == ZE_RESULT_ERROR_DEVICE_LOST)) {
        const size_t size = std::min<size_t>(load32(ring() + ring::TEXT_SIZE), ring::TEXT_MAX);
        const std::string text(reinterpret_cast<const char*>(ring() + ring::TEXT), size);
        try {
            const ErrorInfo left = decode_fault(unpack(text, "fault in the ring"));
            if (left.result == fault.result) fault = left;
        } catch (const Error&) {
            // cut by a newer failure: the result alone has to do
        }
    }
    if (more > 0) fault.found += format(" (and %zu more failed)", more);
    return Error(std::move(fault));
}

bool CommandQueue::has_room(size_t count) const {
    const uint64_t needed = tail_ + count;
    // not by `completed`, which may have grown since the results were read: a slot is used again after that
    return needed <= slots_ || outcomes_.was_read(needed - slots_);
}

// Waits until so many slots are free, however long: the device ends every submission some day.
void CommandQueue::wait_for_room(size_t count) {
    const uint64_t sequence = tail_ + count - slots_;
    const auto over = [&] { return is_over(sequence); };
    const auto doze = [&](uint64_t ns) { sleep(sequence, ns); };
    wait_until(over, doze, FOREVER, *context->connection, spin);
}

void CommandQueue::fill_slots(const std::vector<Recorded>& recorded, Fence* fence) {
    const uint64_t first = tail_ + 1, last = tail_ + recorded.size();
    std::shared_ptr<Execution> execution;
    if (fence != nullptr) {
        execution = std::make_shared<Execution>(Execution{context->next_ticket(), first, last, {}});
    }
    take_down(recorded, execution);
    // from here on nothing fails
    if (fence != nullptr) fence->arm(execution);
    uint64_t sequence = first;
    for (const auto& entry : recorded) {
        ring::Slot made{};
        made.sequence = sequence;
        made.buffer = entry.buffer->handle;
        made.size = entry.size;
        if (fence != nullptr && sequence == last) {
            made.fence = fence->place().block->handle;
            made.fence_offset = fence->place().offset;
            made.ticket = execution->ticket;
        }
        std::memcpy(slot(sequence++), &made, sizeof made);
    }
    tail_ = last;
    store64(ring() + ring::TAIL, last);
}

// Notes what the next submissions use, and who asks for their results: all of it or nothing.
void CommandQueue::take_down(const std::vector<Recorded>& recorded,
                             const std::shared_ptr<Execution>& execution) {
    const size_t before = flight_.size();
    size_t expected = 0;
    try {
        for (const auto& entry : recorded) {
            const uint64_t sequence = tail_ + expected + 1;
            outcomes_.expect(execution);
            ++expected;
            flight_.push_back({sequence, entry.buffer, entry.holds, entry.claim.recording()});
            entry.claim.recording()->submitted(progress_, sequence);
        }
    } catch (const std::bad_alloc&) {
        flight_.erase(flight_.begin() + static_cast<ptrdiff_t>(before), flight_.end());
        outcomes_.expect_less(expected);
        throw;
    }
}

void CommandQueue::read_results(uint64_t last) {
    outcomes_.read(last,
                   [&](uint64_t sequence) { return load32(slot(sequence) + offsetof(ring::Slot, result)); });
}

std::vector<CommandQueue::Flight> CommandQueue::take_ended() {
    std::vector<Flight> ended;
    const uint64_t done = load64(ring() + ring::COMPLETED);
    read_results(done);
    while (!flight_.empty() && flight_.front().sequence <= done) {
        ended.push_back(std::move(flight_.front()));
        flight_.pop_front();
    }
    return ended;
}

uint8_t* CommandQueue::slot(uint64_t sequence) const {
    return ring() + ring::HEADER + ((sequence - 1) & (slots_ - 1)) * sizeof(ring::Slot);
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
