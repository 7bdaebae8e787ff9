#include "base/guard.hpp"

namespace softnpu {

namespace {

// plain memory: a thread may call the driver while its thread-local objects are being destroyed
thread_local char description[1024];

}  // namespace

void keep_description(const char* call, const ErrorInfo& fault) noexcept {
    try {
        const std::string text = std::string(call) + ": " + fault.name() + ": " + fault.text();
        const size_t length = std::min(text.size(), sizeof description - 1);
        text.copy(description, length);
        description[length] = '\0';
    } catch (...) {
        description[0] = '\0';
    }
}

const char* last_description() noexcept { return description; }

ze_result_t failed_unexpectedly(const char* call, ze_result_t result, const char* found) noexcept {
    try {
        keep_description(call, ErrorInfo{result, "driver", found, {}, {}});
    } catch (...) {
        description[0] = '\0';
    }
    return result;
}

}  // namespace softnpu
