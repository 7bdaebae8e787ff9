#include "sync/spin.hpp"

#include <sched.h>

#include <cstdlib>

namespace softnpu {

namespace {

constexpr uint64_t TURBO_NS = 15000000;
constexpr uint64_t DEFAULT_US = 50;
constexpr uint64_t MAX_US = 1000000;

uint64_t bound(bool turbo) {
    cpu_set_t cores;
    // with one core the other side could not run meanwhile
    if (sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) < 2) return 0;
    if (turbo) return TURBO_NS;
    const char* const chosen = std::getenv("SOFTNPU_SPIN_US");
    if (chosen == nullptr || *chosen == '\0') return DEFAULT_US * 1000;
    const unsigned long long us = std::strtoull(chosen, nullptr, 10);
    return (us < MAX_US ? us : MAX_US) * 1000;
}

}  // namespace

SpinBudget::SpinBudget(bool turbo) : turbo_(turbo), max_ns_(bound(turbo)) {}

}  // namespace softnpu
