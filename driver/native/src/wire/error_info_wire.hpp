// A fault as it travels in `failed` messages and in rings.
#pragma once

#include "base/error_info.hpp"
#include "wire/msgpack.hpp"

namespace softnpu {

inline ErrorInfo decode_error_info(const Value& value) {
    ErrorInfo info;
    info.result = static_cast<ze_result_t>(value.integer("result", ZE_RESULT_ERROR_UNKNOWN));
    info.object = value.string("object");
    info.found = value.string("found");
    info.expected = value.string("expected");
    info.hint = value.string("hint");
    return info;
}

}  // namespace softnpu
