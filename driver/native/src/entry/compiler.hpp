// What the calls of the compiler library share: its objects, and how a call ends.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "abi/vcl.hpp"
#include "entry/calls.hpp"
#include "session/driver.hpp"

#define VCL extern "C" __attribute__((visibility("default"))) vcl_result_t

namespace softnpu {

// The last failure of a compiler or profile; its handle ends with theirs.
class CompilerLog : public Object {
public:
    static constexpr Kind KIND = Kind::compiler_log;
    explicit CompilerLog(std::weak_ptr<Object> owner) : Object(std::move(owner)) {}

    void keep(const char* text) {
        std::lock_guard lock(mutex_);
        text_ = text;
    }
    std::string text() {
        std::lock_guard lock(mutex_);
        return text_;
    }

private:
    std::mutex mutex_;
    std::string text_;
};

class Compiler : public Object {
public:
    static constexpr Kind KIND = Kind::compiler;
    explicit Compiler(uint32_t device_id) : device_id(device_id) {}

    const uint32_t device_id;
    const std::string id = "softnpu " SOFTNPU_VERSION;
    std::shared_ptr<CompilerLog> log;

    // The first device of this kind, without one the first; of the daemon that is there now.
    std::shared_ptr<Device> device() const;
};

// A context for one call: a compiler outlives the daemon, a context does not.
class OwnContext {
public:
    explicit OwnContext(const Compiler& compiler);
    ~OwnContext() {
        try {
            context->retire();
        } catch (...) {
            // the daemon is gone, or cannot be asked: the context ends with the session
        }
    }
    std::shared_ptr<Context> context;
};

vcl_result_t translated(ze_result_t result);

// Runs a call; a failure is kept in the log of `owner` too, which the body sets.
template <class F>
vcl_result_t answered(const char* call, F&& body) {
    std::shared_ptr<CompilerLog> log;
    const ze_result_t result = guarded(call, [&] { return body(log); });
    if (result != ZE_RESULT_SUCCESS && log != nullptr) log->keep(last_description());
    return translated(result);
}

using Log = std::shared_ptr<CompilerLog>;

}  // namespace softnpu
