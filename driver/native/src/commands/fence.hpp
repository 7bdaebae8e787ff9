// `ze_fence_handle_t`: tells when a submission of one queue has ended.
#pragma once

#include <atomic>

#include "commands/queue.hpp"
#include "sync/signal.hpp"

namespace softnpu {

class Fence : public Object {
public:
    static constexpr Kind KIND = Kind::fence;
    Fence(std::shared_ptr<CommandQueue> queue, bool signalled);
    ~Fence() override;

    const std::shared_ptr<CommandQueue> queue;

    // False: not ready. Never submitted: at once, whatever the time-out. Throws the submission's failure.
    bool wait(uint64_t timeout);
    void reset();
    // Submission `sequence` of the queue will signal this fence.
    void arm(uint64_t sequence);
    // There was nothing to run: signalled at once.
    void signal_now();
    const Place& place() const { return place_; }

private:
    Signal signal() const { return Signal(place_.block->data() + place_.offset); }

    Place place_;
    std::atomic<uint64_t> sequence_{0};
};

}  // namespace softnpu
