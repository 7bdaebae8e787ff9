// Error information as it travels in `failed` messages and in rings.
#pragma once

#include "base/error_info.hpp"
#include "interface/schema.hpp"
#include "wire/msgpack.hpp"

namespace softnpu {

inline ErrorInfo decode_error_info(const Value& value) {
    using namespace schema;
    ErrorInfo info;
    info.result = static_cast<ze_result_t>(value.integer(error_info::RESULT, ZE_RESULT_ERROR_UNKNOWN));
    info.object = value.string(error_info::OBJECT);
    info.found = value.string(error_info::FOUND);
    info.expected = value.string(error_info::EXPECTED);
    info.hint = value.string(error_info::HINT);
    return info;
}

}  // namespace softnpu
