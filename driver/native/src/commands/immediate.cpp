#include "commands/immediate.hpp"

#include "base/clock.hpp"

namespace softnpu {

namespace {

constexpr uint32_t SLOTS = 4;

Error not_regular() {
    return error(ZE_RESULT_ERROR_UNINITIALIZED, "command list", "an immediate one", "a regular command list");
}

}  // namespace

std::shared_ptr<CommandListImmediate> CommandListImmediate::create(const std::shared_ptr<Context>& context,
                                                                   QueueOptions options) {
    options.slots = SLOTS;
    return std::make_shared<CommandListImmediate>(context, CommandQueue::create(context, options));
}

void CommandListImmediate::retire() {
    CommandList::retire();
    queue_->retire();
}

void CommandListImmediate::close() { throw not_regular(); }

std::optional<Recorded> CommandListImmediate::recorded() { throw not_regular(); }

bool CommandListImmediate::host_synchronize(uint64_t timeout) {
    const bool done = queue_->synchronize(timeout);
    if (done) reset();
    return done;
}

void CommandListImmediate::record(std::vector<Command> commands, const std::shared_ptr<Event>& signal) {
    std::unique_lock lock(mutex_);
    // another thread may append while this one waits without the lock
    while (submitted_) {
        submitted_ = false;
        lock.unlock();
        queue_->synchronize(FOREVER);
        lock.lock();
    }
    reset_locked();
    take_down(std::move(commands), signal);
    encode_locked();
    submitted_ = true;
    const Recorded next = recorded_locked();
    lock.unlock();
    queue_->submit({next}, nullptr);
    if (queue_->synchronous) queue_->synchronize(FOREVER);
}

}  // namespace softnpu
