// Where the commands between two resets of a list were submitted last, for those who wait for their end.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace softnpu {

class CommandQueue;

// Lives as long as the list has these commands or a submission of them is in flight: by then the list may have
// been reset or destroyed.
class Recording {
public:
    // Submission `sequence` of the queue executes it.
    void submitted(std::weak_ptr<CommandQueue> queue, uint64_t sequence);
    // Whether a submission of it may still run.
    bool in_flight();

private:
    std::mutex mutex_;
    std::vector<std::pair<std::weak_ptr<CommandQueue>, uint64_t>> last_;  // of each queue
};

}  // namespace softnpu
