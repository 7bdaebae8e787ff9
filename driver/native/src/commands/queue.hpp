// `ze_command_queue_handle_t`: the driver's end of a ring of submissions.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "commands/encoding.hpp"
#include "commands/progress.hpp"
#include "device/context.hpp"
#include "session/check.hpp"
#include "session/waiting.hpp"

namespace softnpu {

class CommandList;
class Fence;

// A command buffer ready for execution, and the objects that it keeps alive.
struct Recorded {
    std::shared_ptr<Block> buffer;
    uint32_t size = 0;
    std::shared_ptr<const std::vector<KeepAlive>> keep_alive;
    Claim claim;
    std::shared_ptr<const check::Recording> noted;  // while the program is checked
};

struct QueueOptions {
    uint32_t mode = 0;
    uint32_t priority = 0;
    bool turbo = false;
    uint32_t slots = 256;
};

// The program knows that this submission of a queue, and those before it, have ended.
void note_completed(uint64_t queue, uint64_t sequence) noexcept;

class CommandQueue : public Object {
public:
    static constexpr Kind KIND = Kind::command_queue;
    static std::shared_ptr<CommandQueue> create(const std::shared_ptr<Context>& context,
                                                const QueueOptions& options);
    // One in another session, in the place of one whose session is lost. It reports what that has not.
    static std::shared_ptr<CommandQueue> create_after(const std::shared_ptr<CommandQueue>& lost,
                                                      const std::shared_ptr<Context>& context);
    CommandQueue(std::shared_ptr<Context> context, const QueueOptions& options, uint64_t handle,
                 std::shared_ptr<Block> ring);

    const std::shared_ptr<Context> context;
    const QueueOptions options;
    const bool synchronous;
    SpinBudget spin;

    void retire() override;

    void execute(const std::vector<std::shared_ptr<CommandList>>& lists, const std::shared_ptr<Fence>& fence);
    // Submits the recorded lists, as slots become free; the fence is signalled after the last one.
    void submit(const std::vector<Recorded>& recorded, Fence* fence);
    // Waits for all submissions; false after the time-out. Throws the oldest unreported failure, first one of
    // the queues in whose place it is.
    bool synchronize(uint64_t timeout);
    void set_workload(bool background);

    // ---- for fences and lists

    uint64_t handle() const { return handle_; }
    uint64_t last_submitted() const { return tail_; }
    Noted noted() const override { return {handle_, 0, 0, context.get()}; }
    // Whether submission `sequence` has ended or will never run.
    bool is_over(uint64_t sequence) const { return retired_ || progress_->has_ended(sequence); }
    // Between two looks at what the device does; false: it is busy with other queues.
    bool pause_for_device() const { return pause_for(ring() + schema::ring_header::ENGINE_CORE); }
    // DEVICE_LOST when the queue is lost, INVALID_NULL_HANDLE when it is destroyed.
    void check_alive(uint64_t sequence) const;
    // Throws the failure of the first submission of an ended execution that failed, if one did.
    void throw_failure(const Execution& execution);
    // The caller knows that this execution is lost with the session: synchronize does not report it.
    void mark_lost(Execution& execution);

private:
    struct Submission {
        uint64_t sequence;
        std::shared_ptr<Block> buffer;
        std::shared_ptr<const std::vector<KeepAlive>> keep_alive;
        std::shared_ptr<Recording> recording;
    };

    // Some of the recorded lists of one call, at most as many as there are slots.
    struct Part {
        const Recorded* first;
        const Recorded* last;
        const Recorded* begin() const { return first; }
        const Recorded* end() const { return last; }
        size_t size() const { return static_cast<size_t>(last - first); }
    };

    // Submits a part; its last submission signals the fence, if there is one.
    void submit_part(Part part, Fence* fence, const std::shared_ptr<Execution>& execution);
    bool has_room(size_t count) const;
    void wait_for_room(size_t count);
    void check_not_retired() const;
    void keep_submissions();
    bool wait_for_all(uint64_t tail, uint64_t timeout);
    // Throws, once, the failure that the queues in whose place it is have not reported.
    void check_predecessors();
    void throw_unreported();
    // Takes the objects used by the submissions in flight.
    std::deque<Submission> take_in_flight();
    // The next ones: called with the lock.
    void fill_slots(Part part, Fence* fence, const std::shared_ptr<Execution>& execution);
    void note(Part part, uint64_t first, const Fence* fence) const;
    void track(Part part, const std::shared_ptr<Execution>& execution);
    void read_results(uint64_t last);
    // The objects of ended submissions; released without a lock.
    std::vector<Submission> take_ended();
    // The error of a failed submission, with the reason that the engine left in the ring.
    Error failure(Failure failed, size_t more = 0) const;
    uint8_t* slot(uint64_t sequence) const;
    void sleep(uint64_t sequence, uint64_t timeout, const OtherEnds& others);
    // Wakes sleepers on the ring before its memory is reused.
    void wake_waiters();
    uint8_t* ring() const { return ring_->data(); }

    const uint64_t handle_;
    const std::shared_ptr<Block> ring_;
    const uint32_t slots_;
    const std::shared_ptr<Progress> progress_;
    std::shared_ptr<CommandQueue> predecessor_;  // of a lost session; this queue is in its place
    std::atomic<bool> retired_{false};
    std::atomic<bool> background_{false};
    std::atomic<uint32_t> waiters_{0};

    std::mutex mutex_;
    std::atomic<uint64_t> tail_{0};
    std::deque<Submission> in_flight_;
    Outcomes outcomes_;
    uint64_t reported_ = 0;  // up to here a synchronize has reported that the session is lost
};

}  // namespace softnpu
