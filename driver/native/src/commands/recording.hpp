// The last submissions of the commands between two resets of a list, as seen by waiters.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace softnpu {

class Progress;

// Lives as long as the list has these commands or a submission of them is in flight: by then the list may
// have been reset or destroyed.
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

}  // namespace softnpu
