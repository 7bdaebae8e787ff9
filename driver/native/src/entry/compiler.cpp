// The library that OpenVINO loads for a compiler in its plugin: the functions of Intel's library, answered by
// the daemon's compiler. The audit library (../../audit) makes OpenVINO find it here. This file has compilers
// and profiles; compiler_models.cpp has the models that they compile.
#include <dlfcn.h>
#include <unistd.h>

#include "base/environment.hpp"
#include "entry/compiler.hpp"
#include "graph/meta.hpp"
#include "graph/profiling.hpp"

namespace softnpu {

std::shared_ptr<Device> Compiler::device() const {
    open_driver();
    Runtime& here = runtime();
    std::lock_guard lock(here.driver_mutex);
    const auto& devices = here.driver->devices;
    for (const auto& each : devices)
        if (each->info.device_id == device_id) return each;
    if (devices.empty()) {
        throw uninitialized("compiler", "the daemon shows no device", "one whose compiler works",
                            "see ZE_AFFINITY_MASK");
    }
    return devices.front();
}

OwnContext::OwnContext(const Compiler& compiler) {
    const auto device = compiler.device();
    Runtime& here = runtime();
    std::shared_ptr<Driver> driver;
    {
        std::lock_guard lock(here.driver_mutex);
        driver = here.driver;
    }
    context = std::make_shared<Context>(driver);
    context->check_device(*device);
}

vcl_result_t translated(ze_result_t result) {
    switch (result) {
        case ZE_RESULT_SUCCESS: return VCL_RESULT_SUCCESS;
        case ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY:
        case ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY: return VCL_RESULT_ERROR_OUT_OF_MEMORY;
        case ZE_RESULT_ERROR_UNSUPPORTED_FEATURE:
        case ZE_RESULT_ERROR_UNSUPPORTED_VERSION:
        case ZE_RESULT_ERROR_UNSUPPORTED_SIZE:
        case ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION: return VCL_RESULT_ERROR_UNSUPPORTED_FEATURE;
        case ZE_RESULT_ERROR_INVALID_NULL_HANDLE: return VCL_RESULT_ERROR_INVALID_NULL_HANDLE;
        case ZE_RESULT_ERROR_INVALID_ARGUMENT:
        case ZE_RESULT_ERROR_INVALID_NULL_POINTER:
        case ZE_RESULT_ERROR_INVALID_SIZE:
        case ZE_RESULT_ERROR_INVALID_ENUMERATION: return VCL_RESULT_ERROR_INVALID_ARGUMENT;
        case ZE_RESULT_ERROR_DEVICE_LOST: return VCL_RESULT_ERROR_IO;
        case ZE_RESULT_ERROR_MODULE_BUILD_FAILURE: return VCL_RESULT_ERROR_INVALID_IR;
        default: return VCL_RESULT_ERROR_UNKNOWN;
    }
}

}  // namespace softnpu

using namespace softnpu;

namespace {

constexpr vcl_version_info_t COMPILER_API{7, 10};  // OpenVINO 2026.4 asks for no older one
constexpr vcl_version_info_t PROFILING_API{2, 0};
constexpr std::string_view COMPATIBILITY = "COMPATIBILITY_CHECK";  // its value: a compatibility string

class Profile : public Object {
public:
    static constexpr Kind KIND = Kind::profile;
    Profile(const vcl_profiling_input_t& input, uint64_t clock)
        : raw(input.profData), size(input.profSize), clock(clock) {}

    const uint8_t* const raw;  // the program keeps it
    const uint64_t size;
    const uint64_t clock;
    std::shared_ptr<CompilerLog> log;
    std::string layers, tasks;
};

// ---------------------------------------------------------------- whether to serve as compiler

// Whether this address lies in an OpenVINO that has no compiler library of its own beside it.
bool brings_no_compiler(const void* caller) {
    Dl_info info{};
    if (dladdr(caller, &info) == 0 || info.dli_fname == nullptr) return false;
    const std::string file = info.dli_fname;
    const size_t slash = file.rfind('/');
    if (slash == std::string::npos || file.compare(slash + 1, 11, "libopenvino") != 0) return false;
    const std::string beside = file.substr(0, slash + 1) + "libopenvino_intel_npu_compiler";
    return access((beside + "_loader.so").c_str(), F_OK) != 0 && access((beside + ".so").c_str(), F_OK) != 0;
}

// Refuses an OpenVINO without a compiler library of its own, unless the variable says otherwise: with an NPU
// it would find none either, and once refused it asks the driver's compiler, which copies no weights. Serves
// it without a device, where it has no other compiler.
void check_wanted(const vcl_device_desc_t* device, const void* caller) {
    const char* const chosen = variable("SOFTNPU_COMPILER");
    const std::string_view choice = chosen == nullptr || *chosen == '\0' ? "auto" : chosen;
    if (choice == "plugin") return;
    if (choice == "driver") {
        throw unsupported_feature("compiler in the plugin", "SOFTNPU_COMPILER=driver",
                                  "NPU_COMPILER_TYPE=DRIVER", "or unset the variable");
    }
    if (choice != "auto" && choice != "installed") {
        throw invalid_argument("variable SOFTNPU_COMPILER", "'" + std::string(choice) + "'",
                               "auto, plugin, driver or installed");
    }
    const bool offline = device == nullptr || device->deviceID == 0;
    Runtime& here = runtime();
    std::lock_guard lock(here.driver_mutex);
    if ((offline && here.driver == nullptr) || !brings_no_compiler(caller)) return;
    throw unsupported_feature("compiler in the plugin", "this OpenVINO brings no compiler library",
                              "NPU_COMPILER_TYPE=DRIVER",
                              "with SOFTNPU_COMPILER=plugin softnpu gives it one");
}

// Refuses another device's compatibility string. Null asks whether strings are checked at all: they are.
void check_requirements(const Device& device, const char* found) {
    const std::string expected = requirements(device.info.platform);
    if (found == nullptr || found == expected) return;
    throw unsupported_feature("compatibility string", "'" + std::string(found) + "'", "'" + expected + "'",
                              "compile the model for this device");
}

template <class T>
Log new_log(const std::shared_ptr<T>& owner, vcl_log_handle_t* handle) {
    auto log = std::make_shared<CompilerLog>(owner);
    if (handle != nullptr) *handle = new_handle<vcl_log_handle_t>(log);
    return log;
}

}  // namespace

VCL vclGetVersion(vcl_version_info_t* compiler, vcl_version_info_t* profiling) {
    if (compiler == nullptr || profiling == nullptr) return VCL_RESULT_ERROR_INVALID_ARGUMENT;
    *compiler = COMPILER_API;
    *profiling = PROFILING_API;
    return VCL_RESULT_SUCCESS;
}

VCL vclCompilerCreate(vcl_compiler_desc_t* desc, vcl_device_desc_t* device, vcl_compiler_handle_t* compiler,
                      vcl_log_handle_t* log) {
    const void* const caller = __builtin_return_address(0);
    return answered("vclCompilerCreate", [&](Log&) {
        require_nonnull(desc, "compilerDesc");
        require_nonnull(compiler, "compiler");
        check_wanted(device, caller);
        const auto made = std::make_shared<Compiler>(device == nullptr ? 0 : device->deviceID);
        made->device();  // a missing daemon is an error now
        *compiler = new_handle<vcl_compiler_handle_t>(made);
        made->log = new_log(made, log);
    });
}

VCL vclCompilerDestroy(vcl_compiler_handle_t compiler) {
    return answered("vclCompilerDestroy", [&](Log&) { remove<Compiler>(compiler); });
}

VCL vclCompilerGetProperties(vcl_compiler_handle_t compiler, vcl_compiler_properties_t* out) {
    return answered("vclCompilerGetProperties", [&](Log& log) {
        const auto owner = lookup<Compiler>(compiler);
        log = owner->log;
        require_nonnull(out, "properties");
        const CompilerInfo info = owner->device()->compiler();
        *out = {owner->id.c_str(), {info.major, info.minor}, info.opset};
    });
}

VCL vclGetCompilerSupportedOptions(vcl_compiler_handle_t compiler, char* out, uint64_t* size) {
    return answered("vclGetCompilerSupportedOptions", [&](Log& log) {
        const auto owner = lookup<Compiler>(compiler);
        log = owner->log;
        write_text(size, out, owner->device()->compiler().options);
    });
}

VCL vclGetCompilerIsOptionSupported(vcl_compiler_handle_t compiler, const char* option, const char* value) {
    return answered("vclGetCompilerIsOptionSupported", [&](Log& log) {
        const auto owner = lookup<Compiler>(compiler);
        log = owner->log;
        require_nonnull(option, "option");
        if (COMPATIBILITY == option) {
            check_requirements(*owner->device(), value);
            return;
        }
        if (!owner->device()->supports(option, value)) {
            throw unsupported_feature(std::string("option ") + option, "not supported with this value",
                                      "an option of the compiler");
        }
    });
}

// ---------------------------------------------------------------- profiles

VCL vclProfilingCreate(vcl_profiling_input_t* input, vcl_profiling_handle_t* profile, vcl_log_handle_t* log) {
    return answered("vclProfilingCreate", [&](Log&) {
        require_nonnull(input, "profilingInput");
        require_nonnull(input->profData, "profData");
        require_nonnull(profile, "profilingHandle");
        // OpenVINO uses the first device
        const auto made = std::make_shared<Profile>(*input, Compiler(0).device()->info.core_clock_mhz);
        *profile = new_handle<vcl_profiling_handle_t>(made);
        made->log = new_log(made, log);
        made->layers = profile_data(made->raw, made->size, ZE_GRAPH_PROFILING_LAYER_LEVEL, made->clock);
        made->tasks = profile_data(made->raw, made->size, ZE_GRAPH_PROFILING_TASK_LEVEL, made->clock);
    });
}

VCL vclGetDecodedProfilingBuffer(vcl_profiling_handle_t profile, uint32_t type, vcl_profiling_output_t* out) {
    return answered("vclGetDecodedProfilingBuffer", [&](Log& log) {
        const auto found = lookup<Profile>(profile);
        log = found->log;
        require_nonnull(out, "profilingOutput");
        const auto bytes = [](const std::string& text) {
            return vcl_profiling_output_t{reinterpret_cast<const uint8_t*>(text.data()), text.size()};
        };
        switch (type) {
            case VCL_PROFILING_LAYER_LEVEL: *out = bytes(found->layers); break;
            case VCL_PROFILING_TASK_LEVEL: *out = bytes(found->tasks); break;
            case VCL_PROFILING_RAW: *out = {found->raw, found->size}; break;
            default:
                throw invalid_argument("profiling type", format("%u", type),
                                       "LAYER_LEVEL (1), TASK_LEVEL (2) or RAW (3)");
        }
    });
}

VCL vclProfilingGetProperties(vcl_profiling_handle_t profile, vcl_profiling_properties_t* out) {
    return answered("vclProfilingGetProperties", [&](Log& log) {
        log = lookup<Profile>(profile)->log;
        require_nonnull(out, "properties");
        out->version = PROFILING_API;
    });
}

VCL vclProfilingDestroy(vcl_profiling_handle_t profile) {
    return answered("vclProfilingDestroy", [&](Log&) { remove<Profile>(profile); });
}

// Without a log the last failure of this thread: OpenVINO has none yet when a compiler cannot be created.
VCL vclLogHandleGetString(vcl_log_handle_t log, size_t* size, char* out) {
    return answered("vclLogHandleGetString", [&](Log&) {
        write_text(size, out, log == nullptr ? last_description() : lookup<CompilerLog>(log)->text());
    });
}
