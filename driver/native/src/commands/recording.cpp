#include "commands/recording.hpp"

#include <algorithm>

#include "commands/progress.hpp"

namespace softnpu {

void Recording::submitted(const std::shared_ptr<Progress>& progress, uint64_t sequence) {
    std::lock_guard lock(mutex_);
    const auto of_gone = [](const auto& entry) { return entry.first->is_destroyed(); };
    last_.erase(std::remove_if(last_.begin(), last_.end(), of_gone), last_.end());
    for (auto& [known, last] : last_) {
        if (known == progress) {
            last = sequence;
            return;
        }
    }
    last_.emplace_back(progress, sequence);
}

bool Recording::in_flight() {
    if (claims_ != 0) return true;
    std::lock_guard lock(mutex_);
    const auto over = [](const auto& entry) { return entry.first->is_over(entry.second); };
    last_.erase(std::remove_if(last_.begin(), last_.end(), over), last_.end());
    return !last_.empty();
}

}  // namespace softnpu
