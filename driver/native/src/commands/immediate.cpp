#include "commands/immediate.hpp"

#include "base/clock.hpp"

namespace softnpu {

namespace {

constexpr uint32_t SLOTS = 4;

Error not_regular() { return uninitialized("command list", "an immediate one", "a regular command list"); }

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
    // one buffer: an append waits for the end of the one before
    std::lock_guard turn(appending_);
    queue_->synchronize(FOREVER);
    std::vector<Recorded> next;
    next.push_back(record_alone(std::move(commands), signal));
    queue_->submit(next, nullptr);
    if (queue_->synchronous) queue_->synchronize(FOREVER);
}

Recorded CommandListImmediate::record_alone(std::vector<Command> commands,
                                            const std::shared_ptr<Event>& signal) {
    std::lock_guard lock(mutex_);
    reset_locked();
    record_locked(std::move(commands), signal);
    encode_locked();
    return recorded_locked();
}

}  // namespace softnpu
