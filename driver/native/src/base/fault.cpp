#include "base/fault.hpp"

#include <cctype>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace softnpu {

std::string ErrorInfo::text() const {
    std::string text = object + ": " + found;
    if (!expected.empty()) text += "; expected " + expected;
    if (!hint.empty()) {
        text += ". " + hint;
        char& first = text[text.size() - hint.size()];
        first = static_cast<char>(std::toupper(static_cast<unsigned char>(first)));
    }
    return text;
}

std::string ErrorInfo::name() const {
    switch (result) {
#define NAME(code) \
    case code: return #code
        NAME(ZE_RESULT_SUCCESS);
        NAME(ZE_RESULT_NOT_READY);
        NAME(ZE_RESULT_ERROR_DEVICE_LOST);
        NAME(ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY);
        NAME(ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
        NAME(ZE_RESULT_ERROR_MODULE_BUILD_FAILURE);
        NAME(ZE_RESULT_ERROR_MODULE_LINK_FAILURE);
        NAME(ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS);
        NAME(ZE_RESULT_ERROR_NOT_AVAILABLE);
        NAME(ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE);
        NAME(ZE_RESULT_ERROR_UNINITIALIZED);
        NAME(ZE_RESULT_ERROR_UNSUPPORTED_VERSION);
        NAME(ZE_RESULT_ERROR_UNSUPPORTED_FEATURE);
        NAME(ZE_RESULT_ERROR_INVALID_ARGUMENT);
        NAME(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
        NAME(ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE);
        NAME(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
        NAME(ZE_RESULT_ERROR_INVALID_SIZE);
        NAME(ZE_RESULT_ERROR_UNSUPPORTED_SIZE);
        NAME(ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT);
        NAME(ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT);
        NAME(ZE_RESULT_ERROR_INVALID_ENUMERATION);
        NAME(ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION);
        NAME(ZE_RESULT_ERROR_INVALID_NATIVE_BINARY);
        NAME(ZE_RESULT_ERROR_UNKNOWN);
#undef NAME
    }
    return format("ze_result_t %#x", static_cast<unsigned>(result));
}

std::string format(const char* pattern, ...) {
    char buffer[512];
    va_list arguments;
    va_start(arguments, pattern);
    const int length = std::vsnprintf(buffer, sizeof buffer, pattern, arguments);
    va_end(arguments);
    if (length < static_cast<int>(sizeof buffer)) return buffer;
    std::string text(static_cast<size_t>(length), '\0');
    va_start(arguments, pattern);
    std::vsnprintf(text.data(), text.size() + 1, pattern, arguments);
    va_end(arguments);
    return text;
}

std::string errno_text(int code) {
    char buffer[128];
    return strerror_r(code, buffer, sizeof buffer);
}

}  // namespace softnpu
