// Why a call failed: result, object, value found, what was expected, next step.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "abi/ze.hpp"

namespace softnpu {

struct ErrorInfo {
    ze_result_t result = ZE_RESULT_ERROR_UNKNOWN;
    std::string object;
    std::string found;
    std::string expected;
    std::string hint;

    // `OBJECT: FOUND; expected EXPECTED. HINT`
    std::string text() const;
    // The name of the result, for example `ZE_RESULT_ERROR_DEVICE_LOST`.
    std::string name() const;
    // `NAME: TEXT`
    std::string line() const { return name() + ": " + text(); }
};

// The one exception of the driver. It never leaves the library: see `entry/boundary.hpp`.
class Error : public std::exception {
public:
    explicit Error(ErrorInfo info) : info_(std::move(info)), text_(info_.line()) {}

    const ErrorInfo& info() const { return info_; }
    ze_result_t result() const { return info_.result; }
    const char* what() const noexcept override { return text_.c_str(); }

private:
    ErrorInfo info_;
    std::string text_;
};

// Makes the errors of one result: `throw invalid_size(OBJECT, FOUND, EXPECTED, HINT)`.
struct ErrorOf {
    ze_result_t result;
    Error operator()(std::string object, std::string found, std::string expected = {},
                     std::string hint = {}) const {
        return Error({result, std::move(object), std::move(found), std::move(expected), std::move(hint)});
    }
};
constexpr ErrorOf build_failure{ZE_RESULT_ERROR_MODULE_BUILD_FAILURE};
constexpr ErrorOf device_lost{ZE_RESULT_ERROR_DEVICE_LOST};
constexpr ErrorOf insufficient_permissions{ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS};
constexpr ErrorOf invalid_argument{ZE_RESULT_ERROR_INVALID_ARGUMENT};
constexpr ErrorOf invalid_enumeration{ZE_RESULT_ERROR_INVALID_ENUMERATION};
constexpr ErrorOf invalid_native_binary{ZE_RESULT_ERROR_INVALID_NATIVE_BINARY};
constexpr ErrorOf invalid_null_handle{ZE_RESULT_ERROR_INVALID_NULL_HANDLE};
constexpr ErrorOf invalid_null_pointer{ZE_RESULT_ERROR_INVALID_NULL_POINTER};
constexpr ErrorOf invalid_size{ZE_RESULT_ERROR_INVALID_SIZE};
constexpr ErrorOf invalid_synchronization_object{ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT};
constexpr ErrorOf not_available{ZE_RESULT_ERROR_NOT_AVAILABLE};
constexpr ErrorOf object_in_use{ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE};
constexpr ErrorOf out_of_device_memory{ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY};
constexpr ErrorOf out_of_host_memory{ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY};
constexpr ErrorOf uninitialized{ZE_RESULT_ERROR_UNINITIALIZED};
constexpr ErrorOf unknown_error{ZE_RESULT_ERROR_UNKNOWN};
constexpr ErrorOf unsupported_enumeration{ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION};
constexpr ErrorOf unsupported_feature{ZE_RESULT_ERROR_UNSUPPORTED_FEATURE};
constexpr ErrorOf unsupported_size{ZE_RESULT_ERROR_UNSUPPORTED_SIZE};
constexpr ErrorOf unsupported_version{ZE_RESULT_ERROR_UNSUPPORTED_VERSION};

// printf into a string.
std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

// Text of an errno value.
std::string errno_text(int code);

}  // namespace softnpu
