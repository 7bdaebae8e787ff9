#include "entry/boundary.hpp"

#include <cstdio>

namespace softnpu {

namespace {

// plain memory: a thread may call the driver while its thread-local objects are being destroyed
thread_local char description[1024];

}  // namespace

void keep_description(const char* call, const ErrorInfo& info) noexcept {
    try {
        const std::string text = std::string(call) + ": " + info.line();
        const size_t length = std::min(text.size(), sizeof description - 1);
        text.copy(description, length);
        description[length] = '\0';
    } catch (...) {
        description[0] = '\0';
    }
}

const char* last_description() noexcept { return description; }

ze_result_t failed_unexpectedly(const char* call, const char* found) noexcept {
    try {
        keep_description(call, unknown_error("driver", found, "none",
                                             "this is a defect of softnpu: please report it with this line")
                                   .info());
    } catch (...) {
        description[0] = '\0';
    }
    return ZE_RESULT_ERROR_UNKNOWN;
}

ze_result_t out_of_memory(const char* call) noexcept {
    std::snprintf(description, sizeof description, "%s: ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY: no memory", call);
    return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
}

}  // namespace softnpu
