// The border of the library: what a call throws becomes its result, and its description is kept.
#pragma once

#include <cxxabi.h>

#include <new>
#include <string>

#include "base/cancellation.hpp"
#include "base/fault.hpp"

namespace softnpu {

// Keeps why `call` failed, for zeDriverGetLastErrorDescription in this thread.
void keep_description(const char* call, const ErrorInfo& fault) noexcept;
const char* last_description() noexcept;

ze_result_t failed_unexpectedly(const char* call, ze_result_t result, const char* found) noexcept;

template <class F>
ze_result_t guarded(const char* call, F&& body) {
    const NotCancelled whole_call;
    try {
        return body();
    } catch (const Error& failure) {
        keep_description(call, failure.fault());
        return failure.result();
    } catch (const std::bad_alloc&) {
        return failed_unexpectedly(call, ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY, "no memory");
    } catch (const std::exception& failure) {
        return failed_unexpectedly(call, ZE_RESULT_ERROR_UNKNOWN, failure.what());
    } catch (abi::__forced_unwind&) {
        throw;  // the thread is being cancelled
    } catch (...) {
        return failed_unexpectedly(call, ZE_RESULT_ERROR_UNKNOWN, "an exception");
    }
}

// INVALID_NULL_POINTER unless the pointer is given.
inline void given(const void* pointer, const char* name) {
    if (pointer == nullptr) {
        throw error(ZE_RESULT_ERROR_INVALID_NULL_POINTER, name, "null pointer", "an address");
    }
}

}  // namespace softnpu
