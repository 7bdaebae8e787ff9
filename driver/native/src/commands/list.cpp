#include "commands/list.hpp"

#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "commands/event.hpp"

namespace softnpu {

void CommandList::retire() {
    // submissions in flight have their own hold on buffer and memory
    std::lock_guard lock(mutex_);
    commands_.clear();
    buffer_.reset();
    keep_alive_.reset();
}

void CommandList::append(Command command, const Events& events) {
    check_open();
    std::vector<Command> commands;
    for (const auto& event : events.waits) {
        context->check_session(event->context());
        commands.push_back(event_wait(event->memory()));
    }
    check_signal(events.signal);
    commands.push_back(std::move(command));
    record(std::move(commands), events.signal);
}

void CommandList::append_all(std::vector<Command> commands, const std::shared_ptr<Event>& signal) {
    check_open();
    check_signal(signal);
    record(std::move(commands), signal);
}

void CommandList::check_signal(const std::shared_ptr<Event>& signal) const {
    if (signal != nullptr) context->check_session(signal->context());
}

void CommandList::check_open() const {
    std::lock_guard lock(mutex_);
    if (closed_) {
        throw not_available("command list", "closed", "an open list", "reset it first");
    }
}

void CommandList::close() {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    encode_locked();
    closed_ = true;
}

void CommandList::reset() {
    if (check::on() && !is_immediate()) check::ended(KIND, *this, true);
    {
        std::lock_guard lock(mutex_);
        reset_locked();
    }
    context->memory()->flush();
}

bool CommandList::host_synchronize(uint64_t) {
    throw uninitialized("command list", "a regular one", "an immediate command list");
}

std::optional<Recorded> CommandList::recorded() {
    std::lock_guard lock(mutex_);
    if (!closed_) {
        throw uninitialized("command list", "still open", "a closed list", "close it");
    }
    if (commands_.empty()) return std::nullopt;
    prepare_locked();
    return recorded_locked();
}

void CommandList::record(std::vector<Command> commands, const std::shared_ptr<Event>& signal) {
    std::lock_guard lock(mutex_);
    record_locked(std::move(commands), signal);
}

void CommandList::record_locked(std::vector<Command> commands, const std::shared_ptr<Event>& signal) {
    for (auto& command : commands) commands_.push_back(std::move(command));
    if (check::on()) {
        std::for_each(commands_.end() - static_cast<ptrdiff_t>(commands.size()), commands_.end(),
                      note_bounds);
        const check::Append append = check::append();
        appends_.resize(commands_.size() + (signal == nullptr ? 0 : 1), append);
    }
    if (signal == nullptr) return;
    commands_.push_back(event_signal(signal->memory()));
    signal->add_signaller(recording_);
    watched_ = true;
}

// Writes the command buffer; the buffer of a submission in flight is left alone.
void CommandList::encode_locked() {
    if (commands_.empty()) return;
    Encoded encoded = encode(commands_);
    const size_t limit = context->driver->command_buffer_limit;
    if (limit != 0 && encoded.bytes.size() > limit) {
        throw invalid_size("command list", format("%zu bytes of commands", encoded.bytes.size()),
                           format("at most %zu", limit), "use several lists");
    }
    if (buffer_ == nullptr || buffer_->size < encoded.bytes.size() || recording_->in_flight()) {
        buffer_ = context->memory()->allocate(schema::memory_kind::CONTROL, encoded.bytes.size());
    }
    std::memcpy(buffer_->data(), encoded.bytes.data(), encoded.bytes.size());
    size_ = static_cast<uint32_t>(encoded.bytes.size());
    keep_alive_ = std::make_shared<const std::vector<KeepAlive>>(std::move(encoded.keep_alive));
    if (check::on()) noted_ = check::recorded(*this, appends_, uses_of(commands_), signals_of(commands_));
}

void CommandList::reset_locked() {
    commands_.clear();
    appends_.clear();
    keep_alive_.reset();
    if (watched_) {
        // what is in flight keeps both
        if (recording_->in_flight()) buffer_.reset();
        recording_ = std::make_shared<Recording>();
        watched_ = false;
    }
    closed_ = false;
}

Recorded CommandList::recorded_locked() { return {buffer_, size_, keep_alive_, Claim(recording_), noted_}; }

// ---------------------------------------------------------------- immediate lists

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

// ---------------------------------------------------------------- mutable lists

uint64_t CommandListMutable::next_command_id(uint32_t flags) {
    std::lock_guard lock(mutex_);
    const bool known = flags == ZE_MUTABLE_COMMAND_EXP_FLAG_GRAPH_ARGUMENTS ||
                       flags == ZE_MUTABLE_COMMAND_EXP_FLAG_GRAPH_ARGUMENT_DEPRECATED;
    if (closed_ || !known) {
        throw invalid_argument("command list", format("%s, flags %#x", closed_ ? "closed" : "open", flags),
                               format("an open list and the flag GRAPH_ARGUMENTS (%#x)",
                                      ZE_MUTABLE_COMMAND_EXP_FLAG_GRAPH_ARGUMENTS));
    }
    ids_.insert(commands_.size());
    return commands_.size();
}

void CommandListMutable::update(const std::vector<Mutation>& mutations) {
    std::lock_guard lock(mutex_);
    if (!closed_ || mutations.empty()) {
        throw invalid_argument(
            "mutation",
            format("%zu changes of a list that is %s", mutations.size(), closed_ ? "closed" : "open"),
            "at least one change of a closed list");
    }
    for (const auto& mutation : mutations) find(mutation.command, mutation.argument);
    for (const auto& mutation : mutations) {
        find(mutation.command, mutation.argument).arguments[mutation.argument] = {mutation.memory,
                                                                                  mutation.strides};
    }
    changed_ = true;
}

void CommandListMutable::reset() {
    {
        std::lock_guard lock(mutex_);
        ids_.clear();
        changed_ = false;
    }
    CommandList::reset();
}

void CommandListMutable::prepare_locked() {
    if (!changed_) return;
    encode_locked();
    changed_ = false;
}

Inference& CommandListMutable::find(uint64_t id, uint32_t argument) {
    if (ids_.count(id) != 0) {
        for (size_t at = id; at < commands_.size(); ++at) {
            if (commands_[at].inference) {
                if (argument < commands_[at].inference->arguments.size()) return *commands_[at].inference;
                break;
            }
            if (!commands_[at].is_wait) break;
        }
    }
    throw invalid_argument(format("command id %lu, argument %u", id, argument), "not known of this list",
                           "an id from zeCommandListGetNextCommandIdExp, and an argument of its graph");
}

}  // namespace softnpu
