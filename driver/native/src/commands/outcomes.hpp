// The results of the submissions of a queue: a failure is kept until it was reported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "abi/ze.hpp"

namespace softnpu {

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
};

// Guarded by the lock of the queue.
class Outcomes {
public:
    // A submission was made, with or without a fence.
    void expect(std::shared_ptr<Execution> execution) { unread_.push_back(std::move(execution)); }
    // The last `count` of them were not made after all.
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
