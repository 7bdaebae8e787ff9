#include "commands/progress.hpp"

#include <algorithm>

namespace softnpu {

namespace {

constexpr size_t MAX_UNREPORTED = 1024;

}  // namespace

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

void Outcomes::note(uint64_t sequence, uint32_t result) {
    if (result == ZE_RESULT_SUCCESS) return;
    const Failure failure{sequence, static_cast<ze_result_t>(result)};
    Execution* const execution = unread_.front().get();
    if (execution != nullptr && !execution->failure) execution->failure = failure;
    if (unreported_.size() < MAX_UNREPORTED) {
        unreported_.emplace(failure.sequence, failure.result);
    } else {
        ++more_;
    }
}

std::optional<std::pair<Failure, size_t>> Outcomes::take_unreported(uint64_t last) {
    const auto end = unreported_.upper_bound(last);
    if (unreported_.begin() == end) return std::nullopt;
    const Failure first{unreported_.begin()->first, unreported_.begin()->second};
    const size_t more = static_cast<size_t>(std::distance(unreported_.begin(), end)) - 1 + more_;
    unreported_.erase(unreported_.begin(), end);
    more_ = 0;
    return std::make_pair(first, more);
}

bool Outcomes::has_unreported_loss(uint64_t reported) const {
    uint64_t sequence = read_;
    for (const auto& execution : unread_) {
        if (++sequence > reported && (execution == nullptr || !execution->lost_reported)) return true;
    }
    return false;
}

}  // namespace softnpu
