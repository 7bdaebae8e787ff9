#include "commands/queue.hpp"

#include <sched.h>

#include <cstring>

#include "commands/fence.hpp"
#include "commands/list.hpp"
#include "interface/schema.hpp"
#include "session/runtime.hpp"
#include "session/trace.hpp"
#include "session/waiting.hpp"
#include "wire/msgpack.hpp"

namespace softnpu {

using namespace schema;

namespace {

std::string_view priority_name(uint32_t priority) {
    switch (priority) {
        case ZE_COMMAND_QUEUE_PRIORITY_NORMAL: return queue_priority::NORMAL;
        case ZE_COMMAND_QUEUE_PRIORITY_LOW: return queue_priority::LOW;
        case ZE_COMMAND_QUEUE_PRIORITY_HIGH: return queue_priority::HIGH;
        default:
            throw invalid_enumeration("command queue", format("priority %u", priority),
                                      "0 (normal), 1 (low) or 2 (high)");
    }
}

}  // namespace

void note_completed(uint64_t queue, uint64_t sequence) noexcept {
    if (trace::joined.load(std::memory_order_relaxed) == 0) return;
    trace::completed(queue, sequence);
    if (check::on()) check::completed(queue, sequence);
}

std::shared_ptr<CommandQueue> CommandQueue::create(const std::shared_ptr<Context>& context,
                                                   const QueueOptions& options) {
    MapWriter request(queue_create::TAG);
    request.put(queue_create::CONTEXT, context->handle())
        .put(queue_create::SLOTS, options.slots)
        .put(queue_create::PRIORITY, priority_name(options.priority));
    if (options.turbo) request.put_bool(queue_create::TURBO, true);
    auto [handle, ring] =
        context->memory()->create_queue(request, ring_header::SIZE + options.slots * sizeof(Slot));
    return std::make_shared<CommandQueue>(context, options, handle, std::move(ring));
}

std::shared_ptr<CommandQueue> CommandQueue::create_after(const std::shared_ptr<CommandQueue>& lost,
                                                         const std::shared_ptr<Context>& context) {
    auto queue = create(context, lost->options);
    if (lost->background_) queue->set_workload(true);
    queue->predecessor_ = lost;
    lost->take_in_flight();  // nothing of it runs any more
    return queue;
}

CommandQueue::CommandQueue(std::shared_ptr<Context> of, const QueueOptions& options, uint64_t handle,
                           std::shared_ptr<Block> ring)
    : Object(of),
      context(std::move(of)),
      options(options),
      synchronous(options.mode == ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS),
      spin(options.turbo),
      handle_(handle),
      ring_(std::move(ring)),
      slots_(options.slots),
      progress_(std::make_shared<Progress>(ring_)) {}

void CommandQueue::retire() {
    if (predecessor_ != nullptr) {
        runtime().handles.remove_owned_by(predecessor_);
        predecessor_->retire();
    }
    {
        std::lock_guard lock(mutex_);
        retired_ = true;
    }
    note_ending();  // to sleepers on its fences
    wake_waiters();
    if (!context->retired() && !context->connection->is_lost()) {
        try {
            // answered when the engine runs nothing of this queue any more
            context->connection->request(MapWriter(queue_destroy::TAG).put(queue_destroy::QUEUE, handle_),
                                         ok::TAG, 0, {}, Timeout::end);
        } catch (const Error&) {
            if (!context->connection->is_lost()) keep_submissions();
            throw;
        }
    }
    progress_->set_destroyed();
    take_in_flight();
    context->memory()->flush();
}

std::deque<CommandQueue::Submission> CommandQueue::take_in_flight() {
    std::deque<Submission> flight;
    std::lock_guard lock(mutex_);
    flight.swap(in_flight_);
    return flight;
}

// The queue could not be destroyed and runs on: what it uses stays until the context ends.
void CommandQueue::keep_submissions() {
    std::lock_guard lock(mutex_);
    context->keep(ring_);
    context->keep(std::make_shared<std::deque<Submission>>(std::move(in_flight_)));
    in_flight_.clear();
}

void CommandQueue::execute(const std::vector<std::shared_ptr<CommandList>>& lists,
                           const std::shared_ptr<Fence>& fence) {
    if (context->connection->had_ended()) throw context->connection->lost_error();
    // one made before the session was lost is refused for that reason, and not as one of another queue
    if (fence != nullptr) context->check_session(*fence->queue->context);
    // as the real driver does: the work runs, and then the fence of another queue is an error
    Fence* const own = fence != nullptr && fence->queue.get() == this ? fence.get() : nullptr;
    std::vector<Recorded> recorded;
    for (const auto& list : lists) {
        context->check_session(*list->context);
        if (auto entry = list->recorded()) recorded.push_back(std::move(*entry));
    }
    if (!recorded.empty()) {
        submit(recorded, own);
    } else if (own != nullptr) {
        own->signal_now();
    }
    if (fence.get() != own) {
        throw invalid_synchronization_object("fence", "created for another queue", "a fence of this queue");
    }
    if (synchronous) synchronize(FOREVER);
}

void CommandQueue::submit(const std::vector<Recorded>& recorded, Fence* fence) {
    std::shared_ptr<Execution> execution;
    if (fence != nullptr) {
        execution = std::make_shared<Execution>(Execution{context->next_ticket(), 0, 0, {}});
    }
    for (size_t start = 0; start < recorded.size(); start += slots_) {
        const size_t end = std::min<size_t>(start + slots_, recorded.size());
        submit_part({recorded.data() + start, recorded.data() + end},
                    end == recorded.size() ? fence : nullptr, execution);
    }
}

void CommandQueue::submit_part(Part part, Fence* fence, const std::shared_ptr<Execution>& execution) {
    for (;;) {
        std::vector<Submission> ended;
        {
            std::lock_guard lock(mutex_);
            check_not_retired();
            ended = take_ended();
            if (has_room(part.size())) {
                fill_slots(part, fence, execution);
                break;
            }
        }
        ended.clear();  // frees its objects before the wait, and without the lock
        wait_for_room(part.size());
    }
    // the tail is stored before `asleep` is read; the engine stores `asleep` before it reads the tail
    full_fence();
    if (load32(ring() + ring_header::ASLEEP) != 0) context->ring_doorbell();
}

bool CommandQueue::synchronize(uint64_t timeout) {
    check_predecessors();
    const uint64_t tail = tail_;
    try {
        return wait_for_all(tail, timeout);
    } catch (const Error& failed) {
        if (failed.result() == ZE_RESULT_ERROR_DEVICE_LOST) {
            std::lock_guard lock(mutex_);
            reported_ = std::max(reported_, tail);
        }
        throw;
    }
}

bool CommandQueue::wait_for_all(uint64_t tail, uint64_t timeout) {
    const auto over = [&] { return is_over(tail); };
    const auto sleep_once = [&](uint64_t ns, const OtherEnds& others) { sleep(tail, ns, others); };
    const auto pause = [&] { return pause_for_device(); };
    if (!wait_until(over, sleep_once, timeout, *context->connection, spin, pause)) return false;
    std::vector<Submission> ended;
    std::optional<std::pair<Failure, size_t>> unreported;
    {
        std::lock_guard lock(mutex_);
        check_not_retired();
        ended = take_ended();
        unreported = outcomes_.take_unreported(tail);
    }
    ended.clear();
    note_completed(handle_, tail);
    context->memory()->flush();
    check_alive(tail);
    if (unreported) throw failure(unreported->first, unreported->second);
    return true;
}

void CommandQueue::check_predecessors() {
    if (predecessor_ == nullptr) return;
    predecessor_->check_predecessors();
    predecessor_->throw_unreported();
}

void CommandQueue::throw_unreported() {
    bool lost;
    std::optional<std::pair<Failure, size_t>> failed;
    {
        std::lock_guard lock(mutex_);
        if (retired_) return;
        read_results(load64(ring() + ring_header::COMPLETED));
        const bool queue_lost = load32(ring() + ring_header::LOST) != 0 && reported_ < tail_;
        lost = queue_lost || outcomes_.has_unreported_loss(reported_);
        failed = outcomes_.take_unreported(tail_);
        reported_ = tail_;
    }
    if (lost) throw context->connection->lost_error();
    if (failed) throw failure(failed->first, failed->second);
}

void CommandQueue::set_workload(bool background) {
    MapWriter request(queue_workload::TAG);
    request.put(queue_workload::QUEUE, handle_).put_bool(queue_workload::BACKGROUND, background);
    context->connection->request(request, ok::TAG);
    background_ = background;
}

void CommandQueue::check_not_retired() const {
    if (!retired_) return;
    throw invalid_null_handle("command queue", "destroyed meanwhile", "a live queue");
}

void CommandQueue::check_alive(uint64_t sequence) const {
    check_not_retired();
    if (load32(ring() + ring_header::LOST) != 0) throw failure({sequence, ZE_RESULT_ERROR_DEVICE_LOST});
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
    outcomes_.mark_reported(execution.failure->sequence);
    throw failure(*execution.failure);
}

void CommandQueue::mark_lost(Execution& execution) {
    std::lock_guard lock(mutex_);
    execution.lost_reported = true;
}

Error CommandQueue::failure(Failure failed, size_t more) const {
    ErrorInfo info{failed.result, format("submission %lu", failed.sequence), "it failed", {}, {}};
    // the ring has the reason of the last failure only; but a lost queue has one reason for all
    const bool has_reason = load64(ring() + ring_header::FAILED) == failed.sequence;
    if (!retired_ && (has_reason || failed.result == ZE_RESULT_ERROR_DEVICE_LOST)) {
        const size_t size = std::min<size_t>(load32(ring() + ring_header::TEXT_SIZE), ring_header::MAX_TEXT);
        const std::string text(reinterpret_cast<const char*>(ring() + ring_header::TEXT), size);
        try {
            const ErrorInfo left = decode_error_info(unpack(text, "error info in the ring"));
            if (left.result == info.result) info = left;
        } catch (const Error&) {
            // cut by a newer failure: the result alone has to do
        }
    }
    if (more > 0) info.found += format(" (and %zu more failed)", more);
    return Error(std::move(info));
}

bool CommandQueue::has_room(size_t count) const {
    const uint64_t needed = tail_ + count;
    // not by `completed`, which may have grown since the results were read: a slot is used again after that
    return needed <= slots_ || outcomes_.was_read(needed - slots_);
}

// Waits until so many slots are free: the device ends every submission.
void CommandQueue::wait_for_room(size_t count) {
    const uint64_t sequence = tail_ + count - slots_;
    const auto over = [&] { return is_over(sequence); };
    const auto sleep_once = [&](uint64_t ns, const OtherEnds& others) { sleep(sequence, ns, others); };
    const auto pause = [&] { return pause_for_device(); };
    wait_until(over, sleep_once, FOREVER, *context->connection, spin, pause);
}

void CommandQueue::fill_slots(Part part, Fence* fence, const std::shared_ptr<Execution>& execution) {
    const uint64_t first = tail_ + 1, last = tail_ + part.size();
    track(part, execution);
    // from here on nothing fails
    if (execution != nullptr) {
        if (execution->first == 0) execution->first = first;
        execution->last = last;
    }
    if (fence != nullptr) fence->arm(execution);
    if (trace::joined.load(std::memory_order_relaxed) != 0) note(part, first, fence);
    uint64_t sequence = first;
    for (const auto& entry : part) {
        Slot made{};
        made.sequence = sequence;
        made.buffer = entry.buffer->handle;
        made.size = entry.size;
        if (fence != nullptr && sequence == last) {
            made.fence = fence->memory().block->handle;
            made.fence_offset = fence->memory().offset;
            made.ticket = execution->ticket;
        }
        std::memcpy(slot(sequence++), &made, sizeof made);
    }
    tail_ = last;
    store32(ring() + ring_header::DRIVER_CORE, this_core());
    store64(ring() + ring_header::TAIL, last);
}

// For a trace, and for `softnpu check`.
void CommandQueue::note(Part part, uint64_t first, const Fence* fence) const {
    trace::submitted(handle_, first, first + part.size() - 1);
    if (!check::on()) return;
    std::vector<std::shared_ptr<const check::Recording>> lists;
    for (const auto& entry : part) lists.push_back(entry.noted);
    check::submitted(handle_, first, lists, fence);
}

// Records what the next submissions use and who waits for them: all of it or nothing.
void CommandQueue::track(Part part, const std::shared_ptr<Execution>& execution) {
    const size_t before = in_flight_.size();
    size_t expected = 0;
    try {
        for (const auto& entry : part) {
            const uint64_t sequence = tail_ + expected + 1;
            outcomes_.expect(execution);
            ++expected;
            in_flight_.push_back({sequence, entry.buffer, entry.keep_alive, entry.claim.recording()});
            entry.claim.recording()->submitted(progress_, sequence);
        }
    } catch (const std::bad_alloc&) {
        in_flight_.erase(in_flight_.begin() + static_cast<ptrdiff_t>(before), in_flight_.end());
        outcomes_.expect_less(expected);
        throw;
    }
}

void CommandQueue::read_results(uint64_t last) {
    outcomes_.read(last, [&](uint64_t sequence) { return load32(slot(sequence) + offsetof(Slot, result)); });
}

std::vector<CommandQueue::Submission> CommandQueue::take_ended() {
    std::vector<Submission> ended;
    const uint64_t done = load64(ring() + ring_header::COMPLETED);
    read_results(done);
    while (!in_flight_.empty() && in_flight_.front().sequence <= done) {
        ended.push_back(std::move(in_flight_.front()));
        in_flight_.pop_front();
    }
    return ended;
}

uint8_t* CommandQueue::slot(uint64_t sequence) const {
    return ring() + ring_header::SIZE + ((sequence - 1) & (slots_ - 1)) * sizeof(Slot);
}

void CommandQueue::sleep(uint64_t sequence, uint64_t timeout, const OtherEnds& others) {
    ++waiters_;
    if (!retired_) {
        add32(ring() + ring_header::WAITERS, 1);
        full_fence();
        const uint64_t done = load64(ring() + ring_header::COMPLETED);
        if (done < sequence)
            futex_wait(ring() + ring_header::COMPLETED, static_cast<uint32_t>(done), timeout, others);
        add32(ring() + ring_header::WAITERS, -1);
    }
    --waiters_;
}

void CommandQueue::wake_waiters() {
    while (waiters_ != 0) {
        futex_wake(ring() + ring_header::COMPLETED);
        sched_yield();
    }
}

}  // namespace softnpu
