// A fault as it travels in `failed` messages and in rings.
#pragma once

#include "base/fault.hpp"
#include "wire/msgpack.hpp"

namespace softnpu {

inline ErrorInfo decode_fault(const Value& value) {
    ErrorInfo fault;
    fault.result = static_cast<ze_result_t>(value.integer("result", ZE_RESULT_ERROR_UNKNOWN));
    fault.object = value.string("object");
    fault.found = value.string("found");
    fault.expected = value.string("expected");
    fault.hint = value.string("hint");
    return fault;
}

}  // namespace softnpu
