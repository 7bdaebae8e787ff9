// `ze_command_list_handle_t`: commands that are recorded once and executed any number of times.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "commands/encoding.hpp"
#include "commands/progress.hpp"
#include "commands/queue.hpp"
#include "device/context.hpp"

namespace softnpu {

class Event;

// The events of one append: what it waits for, and what it signals.
struct Events {
    std::vector<std::shared_ptr<Event>> waits;
    std::shared_ptr<Event> signal;
};

class CommandList : public Object, public std::enable_shared_from_this<CommandList> {
public:
    static constexpr Kind KIND = Kind::command_list;
    explicit CommandList(std::shared_ptr<Context> context) : Object(context), context(std::move(context)) {}

    const std::shared_ptr<Context> context;

    void retire() override;
    Noted noted() const override { return {0, 0, 0, context.get()}; }
    virtual bool is_immediate() const { return false; }
    virtual bool is_mutable() const { return false; }

    // Records one command with its events. NOT_AVAILABLE when the list is closed.
    void append(Command command, const Events& events);
    // Several commands that are one append: waits, a reset, a signal alone.
    void append_all(std::vector<Command> commands, const std::shared_ptr<Event>& signal);
    // NOT_AVAILABLE when the list is closed.
    void check_open() const;

    virtual void close();
    virtual void reset();
    // For immediate lists: waits for what was appended. UNINITIALIZED for any other.
    virtual bool host_synchronize(uint64_t timeout);

    // ---- for queues and events

    // What a queue executes; none for an empty list. UNINITIALIZED if it is open.
    virtual std::optional<Recorded> recorded();

protected:
    // Records the commands of one append; an immediate list runs them.
    virtual void record(std::vector<Command> commands, const std::shared_ptr<Event>& signal);
    // The next ones: called with the lock.
    void record_locked(std::vector<Command> commands, const std::shared_ptr<Event>& signal);
    // Makes the buffer of a closed list what a queue is to execute.
    virtual void prepare_locked() {}
    void encode_locked();
    void reset_locked();
    Recorded recorded_locked();

    mutable std::mutex mutex_;
    std::vector<Command> commands_;
    bool closed_ = false;

private:
    void check_signal(const std::shared_ptr<Event>& signal) const;

    std::shared_ptr<Block> buffer_;
    uint32_t size_ = 0;
    std::shared_ptr<const std::vector<KeepAlive>> keep_alive_;
    std::shared_ptr<Recording> recording_ = std::make_shared<Recording>();
    bool watched_ = false;                // an event knows the recording
    std::vector<check::Append> appends_;  // one a command, while the program is checked
    std::shared_ptr<const check::Recording> noted_;
};

// An immediate command list: every append runs at once, on a queue of its own.
class CommandListImmediate : public CommandList {
public:
    static std::shared_ptr<CommandListImmediate> create(const std::shared_ptr<Context>& context,
                                                        QueueOptions options);
    CommandListImmediate(std::shared_ptr<Context> context, std::shared_ptr<CommandQueue> queue)
        : CommandList(std::move(context)), queue_(std::move(queue)) {}

    void retire() override;
    bool is_immediate() const override { return true; }
    // UNINITIALIZED: it is never closed.
    void close() override;
    bool host_synchronize(uint64_t timeout) override;
    // UNINITIALIZED: a queue cannot execute it.
    std::optional<Recorded> recorded() override;

protected:
    // Waits for the append before, of whatever thread; with a synchronous queue also for itself.
    void record(std::vector<Command> commands, const std::shared_ptr<Event>& signal) override;

private:
    Recorded record_alone(std::vector<Command> commands, const std::shared_ptr<Event>& signal);

    const std::shared_ptr<CommandQueue> queue_;
    std::mutex appending_;  // held while an append waits; nothing but another append takes it
};

// New memory of an argument, and its strides; dense without any.
struct Mutation {
    uint64_t command = 0;
    uint32_t argument = 0;
    MemoryRef memory;
    std::optional<Strides> strides;
};

// A mutable command list: arguments of recorded inferences may be changed after it was closed.
class CommandListMutable : public CommandList {
public:
    using CommandList::CommandList;

    bool is_mutable() const override { return true; }
    // The id of the command that is appended next. INVALID_ARGUMENT for a closed list or other flags.
    uint64_t next_command_id(uint32_t flags);
    // Takes effect with the next submission. INVALID_ARGUMENT, and then nothing is changed.
    void update(const std::vector<Mutation>& mutations);
    void reset() override;

protected:
    void prepare_locked() override;

private:
    // The inference that the append after `id` commands recorded; its own waits come before it.
    Inference& find(uint64_t id, uint32_t argument);

    std::set<uint64_t> ids_;
    bool changed_ = false;
};

}  // namespace softnpu
