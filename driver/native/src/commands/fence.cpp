#include "commands/fence.hpp"

#include <utility>

#include "base/clock.hpp"
#include "session/check.hpp"
#include "session/trace.hpp"
#include "session/waiting.hpp"

namespace softnpu {

Fence::Fence(std::shared_ptr<CommandQueue> of, bool signalled)
    : Object(of), queue(std::move(of)), memory_(queue->context->acquire_fence()), signalled_(signalled) {}

Fence::~Fence() { queue->context->release_fence(memory_); }

bool Fence::wait(uint64_t timeout) {
    std::shared_ptr<Execution> execution;
    {
        std::lock_guard lock(mutex_);
        if (signalled_) return true;
        execution = execution_;
    }
    if (execution == nullptr) return false;
    const uint64_t ticket = execution->ticket, last = execution->last;
    if (ticket == 0) {
        queue->check_alive(last);  // the fence was reset after its submission had ended
        return false;
    }
    FenceRecord fence = record();
    uint64_t seen = 0;
    const auto over = [&] {
        seen = fence.signalled();
        return seen == ticket || queue->is_over(last);
    };
    const auto sleep = [&](uint64_t ns, const OtherEnds& others) { fence.sleep(seen, ns, others); };
    const auto pause = [&] { return queue->pause_for_device(); };
    try {
        if (!wait_until(over, sleep, timeout, *queue->context->connection, queue->spin, pause)) {
            if (check::on() && timeout != 0) check::timed_out(queue->handle(), last, now_ns() - timeout);
            return false;
        }
    } catch (const Error&) {
        queue->mark_lost(*execution);
        throw;
    }
    if (trace::joined.load(std::memory_order_relaxed) != 0) note_end(*execution);
    // the device signals the fence before it counts the submission as ended
    if (fence.is_signalled(ticket)) {
        const bool succeeded = fence.result() == ZE_RESULT_SUCCESS;
        // if another thread has armed the fence again, the result may be that of its submission
        if (!succeeded || execution->first != last || !is_current(execution))
            queue->throw_failure(*execution);
        return true;
    }
    // ended without our signal: the fence was armed again, or the queue was lost or destroyed
    queue->check_alive(last);
    return false;
}

// For a trace, and for `softnpu check`.
void Fence::note_end(Execution& execution) {
    const uint64_t last = execution.last;
    bool seen;
    {
        std::lock_guard lock(mutex_);
        seen = std::exchange(execution.seen, true);
    }
    if (check::on() && seen && queue->last_submitted() > last) check::rewaited(queue->handle(), last);
    note_completed(queue->handle(), last);
}

bool Fence::is_current(const std::shared_ptr<Execution>& execution) {
    std::lock_guard lock(mutex_);
    return execution_ == execution;
}

void Fence::reset() {
    std::lock_guard lock(mutex_);
    signalled_ = false;
    if (execution_ == nullptr) return;
    if (record().is_signalled(execution_->ticket) || queue->is_over(execution_->last)) {
        record().arm(0);
        execution_ = std::make_shared<Execution>(Execution{0, execution_->first, execution_->last, {}});
    }
}

void Fence::arm(std::shared_ptr<Execution> execution) {
    std::lock_guard lock(mutex_);
    signalled_ = false;
    record().arm(execution->ticket);
    execution_ = std::move(execution);
}

void Fence::signal_now() {
    std::lock_guard lock(mutex_);
    record().arm(0);
    execution_.reset();
    signalled_ = true;
}

}  // namespace softnpu
