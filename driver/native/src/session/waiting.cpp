#include "session/waiting.hpp"

#include <sched.h>

#include <cstdlib>
#include <cstring>

#include "base/environment.hpp"
#include "base/error_info.hpp"
#include "interface/schema.hpp"

namespace softnpu {

using namespace schema;

namespace {

constexpr size_t MAX_DIGITS = 20;

uint64_t chosen_us() {
    const char* const chosen = variable(environment::SPIN_US);
    if (chosen == nullptr || *chosen == '\0') return environment::DEFAULT_SPIN_US;
    const size_t digits = std::strspn(chosen, "0123456789");
    const uint64_t value = std::strtoull(chosen, nullptr, 10);
    if (chosen[digits] != '\0' || digits > MAX_DIGITS || value > environment::MAX_SPIN_US) {
        throw invalid_argument(
            environment::SPIN_US, format("'%s'", chosen),
            format("whole microseconds in ASCII digits, from 0 (none) to %u", environment::MAX_SPIN_US),
            "correct or unset the variable");
    }
    return value;
}

uint64_t bound(bool turbo) {
    cpu_set_t cores;
    // with one core the other side could not run meanwhile
    if (sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) < 2) return 0;
    if (turbo) return environment::TURBO_SPIN_NS;
    return chosen_us() * 1000;
}

}  // namespace

SpinBudget::SpinBudget(bool turbo) : turbo_(turbo), max_ns_(bound(turbo)) {}

void SpinBudget::check_environment() { chosen_us(); }

}  // namespace softnpu
