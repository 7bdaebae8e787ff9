#include "sync/spin.hpp"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/fault.hpp"

namespace softnpu {

namespace {

constexpr uint64_t TURBO_NS = 15000000;
constexpr uint64_t DEFAULT_US = 50;
constexpr uint64_t MAX_US = 1000000;

uint64_t chosen_us() {
    const char* const chosen = std::getenv("SOFTNPU_SPIN_US");
    if (chosen == nullptr || *chosen == '\0') return DEFAULT_US;
    if (chosen[std::strspn(chosen, "0123456789")] != '\0') {
        throw error(ZE_RESULT_ERROR_INVALID_ARGUMENT, "SOFTNPU_SPIN_US", format("'%s'", chosen),
                    "whole microseconds, 0 for none", "correct or unset the variable");
    }
    return std::min<uint64_t>(std::strtoull(chosen, nullptr, 10), MAX_US);
}

uint64_t bound(bool turbo) {
    cpu_set_t cores;
    // with one core the other side could not run meanwhile
    if (sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) < 2) return 0;
    if (turbo) return TURBO_NS;
    return chosen_us() * 1000;
}

}  // namespace

SpinBudget::SpinBudget(bool turbo) : turbo_(turbo), max_ns_(bound(turbo)) {}

void SpinBudget::check_environment() { chosen_us(); }

}  // namespace softnpu
