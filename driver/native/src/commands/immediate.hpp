// An immediate command list: every append runs at once, on a queue of its own.
#pragma once

#include "commands/list.hpp"

namespace softnpu {

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

}  // namespace softnpu
