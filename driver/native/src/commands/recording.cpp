#include "commands/recording.hpp"

#include <algorithm>

#include "commands/queue.hpp"

namespace softnpu {

void Recording::submitted(std::weak_ptr<CommandQueue> queue, uint64_t sequence) {
    std::lock_guard lock(mutex_);
    for (auto& [known, last] : last_) {
        if (!known.owner_before(queue) && !queue.owner_before(known)) {
            last = sequence;
            return;
        }
    }
    last_.emplace_back(std::move(queue), sequence);
}

bool Recording::in_flight() {
    std::lock_guard lock(mutex_);
    const auto over = [](const auto& entry) {
        const auto queue = entry.first.lock();
        return queue == nullptr || queue->is_over(entry.second);
    };
    last_.erase(std::remove_if(last_.begin(), last_.end(), over), last_.end());
    return !last_.empty();
}

}  // namespace softnpu
