// `ze_command_queue_handle_t`: the driver's end of a ring of submissions.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "commands/encoding.hpp"
#include "device/context.hpp"
#include "sync/spin.hpp"

namespace softnpu {

class CommandList;
class Fence;
class Recording;

// A command buffer that is ready to be executed, and what has to stay alive meanwhile.
struct Recorded {
    std::shared_ptr<Block> buffer;
    uint32_t size = 0;
    std::shared_ptr<const std::vector<Hold>> holds;
    std::shared_ptr<Recording> recording;
};

struct QueueOptions {
    uint32_t mode = 0;
    uint32_t priority = 0;
    bool turbo = false;
    uint32_t slots = 256;
};

class CommandQueue : public Object, public std::enable_shared_from_this<CommandQueue> {
public:
    static constexpr Kind KIND = Kind::command_queue;
    static std::shared_ptr<CommandQueue> create(const std::shared_ptr<Context>& context,
                                                const QueueOptions& options);
    CommandQueue(std::shared_ptr<Context> context, const QueueOptions& options, uint64_t handle,
                 std::shared_ptr<Block> ring);

    const std::shared_ptr<Context> context;
    const bool synchronous;
    SpinBudget spin;

    void retire() override;

    void execute(const std::vector<std::shared_ptr<CommandList>>& lists, const std::shared_ptr<Fence>& fence);
    // Submits what is recorded; the fence is signalled after the last one.
    void submit(const std::vector<Recorded>& recorded, Fence* fence);
    // Waits for all submissions; false when the time has passed. Throws the failure of one, once.
    bool synchronize(uint64_t timeout);
    void set_workload(bool background);

    // ---- for fences and lists

    // Whether submission `sequence` has ended or will never run.
    bool is_over(uint64_t sequence) const { return has_ended(sequence) || retired_; }
    // DEVICE_LOST when the queue is lost, INVALID_NULL_HANDLE when it is destroyed.
    void check_alive(uint64_t sequence);
    // The error of a failed submission, with the reason that the engine left in the ring.
    Error failure(uint32_t result, uint64_t sequence);
    // A fence is gone: its record is given back once the submission that signals it has ended.
    void retire_signal(Place place, uint64_t sequence);

private:
    struct Flight {
        uint64_t sequence;
        std::shared_ptr<Block> buffer;
        std::shared_ptr<const std::vector<Hold>> holds;
        std::shared_ptr<Recording> recording;
    };
    struct RetiredSignal {
        uint64_t sequence;
        Place place;
    };

    bool has_ended(uint64_t sequence) const;
    void make_room(std::unique_lock<std::mutex>& lock, size_t count);
    void fill_slots(const std::vector<Recorded>& recorded, Fence* fence);
    // What ended submissions used; to be let go of without a lock.
    std::vector<Flight> take_ended();
    void release_ended();
    void sleep(uint64_t sequence, uint64_t timeout);
    // Lets go of those who sleep on the ring: its memory may be another's soon.
    void wake_sleepers();
    uint8_t* ring() const { return ring_->data(); }

    const uint64_t handle_;
    const std::shared_ptr<Block> ring_;
    const uint32_t slots_;
    std::atomic<bool> retired_{false};
    std::atomic<uint32_t> sleepers_{0};

    std::mutex mutex_;
    std::atomic<uint64_t> tail_{0};
    std::atomic<uint64_t> told_{0};  // the last failed submission that somebody was told of
    std::deque<Flight> flight_;
    std::vector<RetiredSignal> signals_;
};

}  // namespace softnpu
