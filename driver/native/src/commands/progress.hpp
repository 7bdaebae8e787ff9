// The progress of a command queue, which may be read after its end.
#pragma once

#include <atomic>
#include <memory>

#include "interface/schema.hpp"
#include "interface/words.hpp"
#include "memory/block.hpp"

namespace softnpu {

// Submissions of a destroyed queue may run until the device has confirmed its end.
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

}  // namespace softnpu
