// The fate of submissions: the progress of a queue, the executions of a list's commands, and the results.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "abi/ze.hpp"
#include "interface/schema.hpp"
#include "interface/words.hpp"
#include "memory/pool.hpp"

namespace softnpu {

// The progress of a queue, which may be read after its end: submissions of a destroyed one may run until the
// device has confirmed its end.
class Progress {
public:
    explicit Progress(std::shared_ptr<Block> ring) : ring_(std::move(ring)) {}

    // Whether submission `sequence` has ended. Not after the end of the queue: its ring is reused then.
    bool has_ended(uint64_t sequence) const {
        return load64(ring_->data() + schema::ring_header::COMPLETED) >= sequence;
    }
    // Whether it has ended or will never run.
    bool is_over(uint64_t sequence) const { return destroyed_ || has_ended(sequence); }

    // Whether the device runs nothing of the queue any more.
    bool is_destroyed() const { return destroyed_; }
    void set_destroyed() { destroyed_ = true; }

private:
    const std::shared_ptr<Block> ring_;
    std::atomic<bool> destroyed_{false};
};

// The last submissions of the commands between two resets of a list, as seen by waiters. Lives as long
// as the list has these commands or a submission of them is in flight: by then the list may have been reset
// or destroyed.
class Recording {
public:
    // Submission `sequence` of the queue with this progress executes it.
    void submitted(const std::shared_ptr<Progress>& progress, uint64_t sequence);
    // Whether a submission of it may still run, or is just being made.
    bool in_flight();

private:
    friend class Claim;

    std::atomic<uint32_t> claims_{0};
    std::mutex mutex_;
    std::vector<std::pair<std::shared_ptr<Progress>, uint64_t>> last_;  // of each queue
};

// Protects the buffer of a list while a queue is submitting it.
class Claim {
public:
    Claim() = default;
    explicit Claim(std::shared_ptr<Recording> recording) : recording_(std::move(recording)) {
        ++recording_->claims_;
    }
    Claim(Claim&&) = default;
    Claim& operator=(Claim&& other) noexcept {
        std::swap(recording_, other.recording_);
        return *this;
    }
    ~Claim() {
        if (recording_ != nullptr) --recording_->claims_;
    }

    const std::shared_ptr<Recording>& recording() const { return recording_; }

private:
    std::shared_ptr<Recording> recording_;
};

// A submission that failed.
struct Failure {
    uint64_t sequence;
    ze_result_t result;
};

// The submissions of one call with a fence, `first` and `last` of them, and the ticket that signals it; 0:
// none does. Those of other calls may lie between the parts of a long one.
struct Execution {
    uint64_t ticket = 0;
    uint64_t first = 0;
    uint64_t last = 0;
    std::optional<Failure> failure;  // the first of them that failed; with the lock of the queue
    bool lost_reported = false;      // that they are lost with the session; with the lock of the queue
    bool seen = false;               // while checked: a wait has ended; with the lock of the fence
};

// The results of the submissions of a queue: a failure is kept until it was reported. Guarded by the lock of
// the queue.
class Outcomes {
public:
    // A submission was made, with or without a fence.
    void expect(std::shared_ptr<Execution> execution) { unread_.push_back(std::move(execution)); }
    // The last `count` of them were not submitted after all.
    void expect_less(size_t count) { unread_.resize(unread_.size() - count); }
    // Reads the results of all submissions up to `sequence`, which have ended; `result_of(s)` is in the slot.
    template <class ResultOf>
    void read(uint64_t sequence, ResultOf&& result_of) {
        while (read_ < sequence && !unread_.empty()) {
            note(read_ + 1, result_of(read_ + 1));
            unread_.pop_front();
            ++read_;
        }
    }
    bool was_read(uint64_t sequence) const { return read_ >= sequence; }
    void mark_reported(uint64_t sequence) { unreported_.erase(sequence); }
    // The oldest unreported failure up to `last`, and how many more there are. All of them count as reported.
    std::optional<std::pair<Failure, size_t>> take_unreported(uint64_t last);
    // Whether a submission after `reported` has no result, and was not reported as lost by its fence.
    bool has_unreported_loss(uint64_t reported) const;

private:
    void note(uint64_t sequence, uint32_t result);

    uint64_t read_ = 0;                              // results up to here were read
    std::deque<std::shared_ptr<Execution>> unread_;  // of the submissions behind
    std::map<uint64_t, ze_result_t> unreported_;
    size_t more_ = 0;  // failures beyond those that are kept
};

}  // namespace softnpu
