// `ze_fence_handle_t`: signalled when the submissions of one call have ended.
#pragma once

#include <mutex>

#include "commands/queue.hpp"
#include "memory/records.hpp"

namespace softnpu {

class Fence : public Object {
public:
    static constexpr Kind KIND = Kind::fence;
    Fence(std::shared_ptr<CommandQueue> queue, bool signalled);
    ~Fence() override;

    const std::shared_ptr<CommandQueue> queue;
    Noted noted() const override { return {0, 0, 0, queue.get()}; }

    // False: not ready. Never submitted: at once, whatever the time-out. Throws the failure of the first of
    // its submissions that failed.
    bool wait(uint64_t timeout);
    // Work in flight stays attached.
    void reset();
    // The submissions of this execution signal it when the last of them has ended.
    void arm(std::shared_ptr<Execution> execution);
    // Signals at once: there was nothing to run.
    void signal_now();
    const MemoryRef& memory() const { return memory_; }

private:
    void note_end(Execution& execution);
    // Whether it was neither armed again nor reset since.
    bool is_current(const std::shared_ptr<Execution>& execution);
    FenceRecord record() const { return FenceRecord(memory_.data()); }

    const MemoryRef memory_;
    std::mutex mutex_;
    std::shared_ptr<Execution> execution_;  // what it was given to last
    bool signalled_;                        // by the host: created so, or given to lists without commands
};

}  // namespace softnpu
