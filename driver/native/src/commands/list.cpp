#include "commands/list.hpp"

#include <cstring>

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
}

void CommandList::reset_locked() {
    commands_.clear();
    keep_alive_.reset();
    if (watched_) {
        // what is in flight keeps both
        if (recording_->in_flight()) buffer_.reset();
        recording_ = std::make_shared<Recording>();
        watched_ = false;
    }
    closed_ = false;
}

Recorded CommandList::recorded_locked() { return {buffer_, size_, keep_alive_, Claim(recording_)}; }

}  // namespace softnpu
