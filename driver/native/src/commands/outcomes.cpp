#include "commands/outcomes.hpp"

namespace softnpu {

namespace {

constexpr size_t MOST_KEPT = 1024;

}  // namespace

void Outcomes::note(uint64_t sequence, uint32_t result) {
    if (result == ZE_RESULT_SUCCESS) return;
    const Failure failure{sequence, static_cast<ze_result_t>(result)};
    Execution* const execution = unread_.front().get();
    if (execution != nullptr && !execution->failure) execution->failure = failure;
    if (untold_.size() < MOST_KEPT) {
        untold_.emplace(failure.sequence, failure.result);
    } else {
        ++more_;
    }
}

std::optional<std::pair<Failure, size_t>> Outcomes::take_untold(uint64_t last) {
    const auto end = untold_.upper_bound(last);
    if (untold_.begin() == end) return std::nullopt;
    const Failure first{untold_.begin()->first, untold_.begin()->second};
    const size_t more = static_cast<size_t>(std::distance(untold_.begin(), end)) - 1 + more_;
    untold_.erase(untold_.begin(), end);
    more_ = 0;
    return std::make_pair(first, more);
}

}  // namespace softnpu
