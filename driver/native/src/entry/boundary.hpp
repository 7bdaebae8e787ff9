// The boundary of the library: an exception becomes the result of the call, and its description is kept.
#pragma once

#include <cxxabi.h>

#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "base/cancellation.hpp"
#include "base/error_info.hpp"
#include "session/trace.hpp"

namespace softnpu {

// Keeps the reason for zeDriverGetLastErrorDescription in this thread.
void keep_description(const char* call, const ErrorInfo& info) noexcept;
const char* last_description() noexcept;

// The result of an unexpected exception, with a description that asks for a report.
ze_result_t failed_unexpectedly(const char* call, const char* found) noexcept;
ze_result_t out_of_memory(const char* call) noexcept;

template <class F>
ze_result_t run_guarded(const char* call, F&& body) {
    const NotCancelled whole_call;
    try {
        if constexpr (std::is_void_v<decltype(body())>) {
            body();
            return ZE_RESULT_SUCCESS;
        } else {
            return body();
        }
    } catch (const Error& failure) {
        keep_description(call, failure.info());
        return failure.result();
    } catch (const std::bad_alloc&) {
        return out_of_memory(call);
    } catch (const std::exception& failure) {
        return failed_unexpectedly(call, failure.what());
    } catch (abi::__forced_unwind&) {
        throw;  // the thread is being cancelled
    } catch (...) {
        return failed_unexpectedly(call, "an exception");
    }
}

// Runs the body of a call. A body without a result succeeds when it returns.
template <class F>
ze_result_t guarded(const char* call, F&& body) {
    if (!trace::wanted()) return run_guarded(call, std::forward<F>(body));
    const trace::Call traced(call);
    return traced.end(run_guarded(call, std::forward<F>(body)));
}

}  // namespace softnpu
