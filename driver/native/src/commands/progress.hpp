// How far a command queue has come: for those who ask about its submissions, also after its end.
#pragma once

#include <atomic>
#include <memory>

#include "memory/block.hpp"
#include "sync/words.hpp"
#include "wire/schema.hpp"

namespace softnpu {

// A list, an event or a fence may ask after the queue was destroyed: until the device has confirmed that, its
// submissions may still run.
class Progress {
public:
    explicit Progress(std::shared_ptr<Block> ring) : ring_(std::move(ring)) {}

    // Whether submission `sequence` has ended. Not to be asked when the queue is gone: its ring is another's
    // then.
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

}  // namespace softnpu
