// Why a call failed: result code, object, what was found, expected, next step.
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
};

// The one exception of the driver. It never leaves the library: see `guard.hpp`.
class Error : public std::exception {
public:
    explicit Error(ErrorInfo fault) : fault_(std::move(fault)), text_(fault_.name() + ": " + fault_.text()) {}

    const ErrorInfo& fault() const { return fault_; }
    ze_result_t result() const { return fault_.result; }
    const char* what() const noexcept override { return text_.c_str(); }

private:
    ErrorInfo fault_;
    std::string text_;
};

inline Error error(ze_result_t result, std::string object, std::string found, std::string expected = {},
                   std::string hint = {}) {
    return Error(ErrorInfo{result, std::move(object), std::move(found), std::move(expected), std::move(hint)});
}

// printf into a string.
std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

// Text of an errno value.
std::string errno_text(int code);

}  // namespace softnpu
