// The compiler library that OpenVINO loads for a compiler in its plugin: the calls of Intel's, answered by the
// daemon's compiler. The audit library (../../audit) makes OpenVINO find it here.
#include <dlfcn.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <mutex>

#include "abi/vcl.hpp"
#include "base/environment.hpp"
#include "entry/calls.hpp"
#include "graph/creation.hpp"
#include "graph/profiling.hpp"
#include "interface/schema.hpp"
#include "session/driver.hpp"

using namespace softnpu;

namespace {

constexpr vcl_version_info_t COMPILER_API{7, 10};  // OpenVINO 2026.4 asks for no older one
constexpr vcl_version_info_t PROFILING_API{2, 0};
constexpr int MOST_GRAPHS = 16;  // of one model with separated weights; the daemon's compiler makes two

// ---------------------------------------------------------------- objects

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
    std::shared_ptr<Device> device() const {
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
};

class Executable : public Object {
public:
    static constexpr Kind KIND = Kind::executable;
    Executable(std::weak_ptr<Object> compiler, std::string blob)
        : Object(std::move(compiler)), blob(std::move(blob)) {}
    const std::string blob;  // empty if the program has it
};

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

// A context for one call: a compiler outlives the daemon, a context does not.
class OwnContext {
public:
    explicit OwnContext(const Compiler& compiler) {
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
    ~OwnContext() {
        try {
            context->retire();
        } catch (const Error&) {
            // the daemon is gone, and the context with it
        }
    }
    std::shared_ptr<Context> context;
};

// ---------------------------------------------------------------- results

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

// Runs a call; a failure is kept in the log of `owner` too, which the body sets.
template <class F>
vcl_result_t answered(const char* call, F&& body) {
    std::shared_ptr<CompilerLog> log;
    const ze_result_t result = guarded(call, [&] { return body(log); });
    if (result != ZE_RESULT_SUCCESS && log != nullptr) log->keep(last_description());
    return translated(result);
}

using Log = std::shared_ptr<CompilerLog>;

// ---------------------------------------------------------------- compilation

// Up to its NUL, if it has one.
std::string text_of(const char* text, uint64_t size) {
    return text == nullptr ? std::string() : std::string(text, strnlen(text, size));
}

ze_graph_desc_t description(const vcl_executable_desc_t& desc, const std::string& flags) {
    require_nonnull(desc.modelIRData, "modelIRData");
    ze_graph_desc_t made{};
    made.format = ZE_GRAPH_FORMAT_NGRAPH_LITE;
    made.inputSize = desc.modelIRSize;
    made.pInput = desc.modelIRData;
    made.pBuildFlags = flags.c_str();
    return made;
}

// Not through the driver's cache, which is not this compiler's: NPU_BYPASS_UMD_CACHING does not arrive here.
std::shared_ptr<Graph> compiled(const OwnContext& own, const vcl_executable_desc_t& desc,
                                const std::string& flags) {
    const ze_graph_desc_t graph = description(desc, flags);
    return create_graph(own.context, &graph, ZE_GRAPH_FLAG_DISABLE_CACHING);
}

using Room = std::function<uint8_t*(uint64_t)>;

Room room_of(vcl_allocator2_t* allocator) {
    require_nonnull(allocator, "allocator");
    require_nonnull(reinterpret_cast<void*>(allocator->allocate), "allocate");
    return [=](uint64_t size) { return allocator->allocate(allocator, size); };
}

// Copies the blob into memory of the program.
std::pair<uint8_t*, uint64_t> give(Graph& graph, const Room& room) {
    const auto [data, size] = graph.native_binary();
    uint8_t* const target = room(size);
    if (target == nullptr) {
        throw out_of_host_memory("blob of '" + graph.meta.name + "'",
                                 format("the program's allocator has no %zu bytes", size), "memory for it");
    }
    std::memcpy(target, data, size);
    return {target, size};
}

vcl_result_t create_in(const char* call, vcl_compiler_handle_t compiler, const vcl_executable_desc_t& desc,
                       const std::function<Room()>& room, uint8_t** blob, uint64_t* size,
                       vcl_executable_handle_t* executable) {
    return answered(call, [&](Log& log) {
        const auto owner = lookup<Compiler>(compiler);
        log = owner->log;
        require_nonnull(blob, "blobBuffer");
        require_nonnull(size, "blobSize");
        const Room allocate = room();
        const OwnContext own(*owner);
        const auto graph = compiled(own, desc, text_of(desc.options, desc.optionsSize));
        std::tie(*blob, *size) = give(*graph, allocate);
        if (executable != nullptr)
            *executable = new_handle<vcl_executable_handle_t>(
                std::make_shared<Executable>(owner, std::string()));
    });
}

bool is_init(const Graph& graph) {
    return !graph.meta.arguments.empty() && graph.meta.arguments[0].node_name.rfind("vpux_ow_", 0) == 0;
}

// The init graphs, then the main graph, each in memory of its own.
vcl_result_t create_separated(const char* call, vcl_compiler_handle_t compiler,
                              const vcl_executable_desc_t& desc, vcl_allocator2_t* allocator,
                              vcl_executable_handle_t* executable) {
    return answered(call, [&](Log& log) {
        const auto owner = lookup<Compiler>(compiler);
        log = owner->log;
        const Room room = room_of(allocator);
        std::string flags = text_of(desc.options, desc.optionsSize);
        if (flags.find("--config") == std::string::npos) flags += " --config";
        const OwnContext own(*owner);
        for (int number = 0; number < MOST_GRAPHS; ++number) {
            const auto graph = compiled(own, desc, flags + format(" WS_COMPILE_CALL_NUMBER=\"%d\"", number));
            give(*graph, room);
            if (is_init(*graph)) continue;
            if (executable != nullptr)
                *executable = new_handle<vcl_executable_handle_t>(
                    std::make_shared<Executable>(owner, std::string()));
            return;
        }
        throw unknown_error("compiler", "init graphs without an end", "a main graph");
    });
}

// ---------------------------------------------------------------- whether to be there

// Whether the file of this address is OpenVINO without a compiler library of its own beside it.
bool brings_no_compiler(const void* caller) {
    Dl_info info{};
    if (dladdr(caller, &info) == 0 || info.dli_fname == nullptr) return false;
    const std::string file = info.dli_fname;
    const size_t slash = file.rfind('/');
    if (slash == std::string::npos || file.compare(slash + 1, 11, "libopenvino") != 0) return false;
    const std::string beside = file.substr(0, slash + 1) + "libopenvino_intel_npu_compiler";
    return access((beside + "_loader.so").c_str(), F_OK) != 0 && access((beside + ".so").c_str(), F_OK) != 0;
}

// Refuses to be a compiler that this OpenVINO would not find on a machine with an NPU: then it asks the
// driver's compiler, which copies no weights. Not without a device, where it has no other.
void check_wanted(const vcl_device_desc_t* device, const void* caller) {
    const char* const chosen = variable("SOFTNPU_COMPILER");
    const std::string_view choice = chosen == nullptr || *chosen == '\0' ? "auto" : chosen;
    if (choice == "plugin") return;
    if (choice == "driver") {
        throw unsupported_feature("compiler in the plugin", "SOFTNPU_COMPILER=driver",
                                  "NPU_COMPILER_TYPE=DRIVER", "or unset the variable");
    }
    if (choice != "auto") {
        throw invalid_argument("variable SOFTNPU_COMPILER", "'" + std::string(choice) + "'",
                               "auto, plugin or driver");
    }
    const bool offline = device == nullptr || device->deviceID == 0;
    Runtime& here = runtime();
    std::lock_guard lock(here.driver_mutex);
    if ((offline && here.driver == nullptr) || !brings_no_compiler(caller)) return;
    throw unsupported_feature("compiler in the plugin", "this OpenVINO brings no compiler library",
                              "NPU_COMPILER_TYPE=DRIVER",
                              "with SOFTNPU_COMPILER=plugin softnpu gives it one");
}

template <class T>
Log new_log(const std::shared_ptr<T>& owner, vcl_log_handle_t* handle) {
    auto log = std::make_shared<CompilerLog>(owner);
    if (handle != nullptr) *handle = new_handle<vcl_log_handle_t>(log);
    return log;
}

}  // namespace

#define VCL extern "C" __attribute__((visibility("default"))) vcl_result_t

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
        if (!owner->device()->supports(option, value)) {
            throw unsupported_feature(std::string("option ") + option, "not supported with this value",
                                      "an option of the compiler");
        }
    });
}

// ---------------------------------------------------------------- models

VCL vclAllocatedExecutableCreate(vcl_compiler_handle_t compiler, vcl_executable_desc_t desc,
                                 const vcl_allocator_t* allocator, uint8_t** blob, uint64_t* size) {
    const auto room = [&]() -> Room {
        require_nonnull(allocator, "allocator");
        return allocator->allocate;
    };
    return create_in("vclAllocatedExecutableCreate", compiler, desc, room, blob, size, nullptr);
}

VCL vclAllocatedExecutableCreate2(vcl_compiler_handle_t compiler, vcl_executable_desc_t desc,
                                  vcl_allocator2_t* allocator, uint8_t** blob, uint64_t* size) {
    const auto room = [&] { return room_of(allocator); };
    return create_in("vclAllocatedExecutableCreate2", compiler, desc, room, blob, size, nullptr);
}

VCL vclAllocatedExecutableCreate4(vcl_compiler_handle_t compiler, vcl_executable_desc_t desc,
                                  vcl_allocator2_t* allocator, uint8_t** blob, uint64_t* size,
                                  vcl_executable_handle_t* executable) {
    const auto room = [&] { return room_of(allocator); };
    return create_in("vclAllocatedExecutableCreate4", compiler, desc, room, blob, size, executable);
}

VCL vclAllocatedExecutableCreateWSOneShot(vcl_compiler_handle_t compiler, vcl_executable_desc_t desc,
                                          vcl_allocator2_t* allocator) {
    return create_separated("vclAllocatedExecutableCreateWSOneShot", compiler, desc, allocator, nullptr);
}

VCL vclAllocatedExecutableCreateWSOneShot2(vcl_compiler_handle_t compiler, vcl_executable_desc_t desc,
                                           vcl_allocator2_t* allocator, vcl_executable_handle_t* executable) {
    return create_separated("vclAllocatedExecutableCreateWSOneShot2", compiler, desc, allocator, executable);
}

VCL vclExecutableCreate(vcl_compiler_handle_t compiler, vcl_executable_desc_t desc,
                        vcl_executable_handle_t* executable) {
    return answered("vclExecutableCreate", [&](Log& log) {
        const auto owner = lookup<Compiler>(compiler);
        log = owner->log;
        require_nonnull(executable, "executable");
        const OwnContext own(*owner);
        const auto graph = compiled(own, desc, text_of(desc.options, desc.optionsSize));
        const auto [data, size] = graph->native_binary();
        *executable = new_handle<vcl_executable_handle_t>(std::make_shared<Executable>(
            owner, std::string(reinterpret_cast<const char*>(data), size)));
    });
}

VCL vclExecutableGetSerializableBlob(vcl_executable_handle_t executable, uint8_t* out, uint64_t* size) {
    return answered("vclExecutableGetSerializableBlob", [&](Log&) {
        const auto blob = lookup<Executable>(executable);
        write_bytes(size, out, blob->blob.data(), blob->blob.size());
    });
}

// Blobs of softnpu have no such description: OpenVINO goes on without.
VCL vclExecutableGetCompatibilityString(vcl_executable_handle_t executable, char*, uint64_t* size) {
    return answered("vclExecutableGetCompatibilityString", [&](Log&) {
        lookup<Executable>(executable);
        require_nonnull(size, "size");
        *size = 0;
        throw unsupported_feature("compatibility string", "blobs of softnpu have none", "none");
    });
}

VCL vclExecutableDestroy(vcl_executable_handle_t executable) {
    return answered("vclExecutableDestroy", [&](Log&) { remove<Executable>(executable); });
}

VCL vclQueryNetworkCreate(vcl_compiler_handle_t compiler, vcl_query_desc_t desc, vcl_query_handle_t* query) {
    return answered("vclQueryNetworkCreate", [&](Log& log) {
        const auto owner = lookup<Compiler>(compiler);
        log = owner->log;
        require_nonnull(query, "query");
        const std::string flags = text_of(desc.options, desc.optionsSize);
        const ze_graph_desc_t model = description(desc, flags);
        const OwnContext own(*owner);
        const auto found = query_network(own.context, &model);
        *query = new_handle<vcl_query_handle_t>(std::make_shared<QueryNetwork>(owner, found->layers));
    });
}

VCL vclQueryNetwork(vcl_query_handle_t query, uint8_t* out, uint64_t* size) {
    return answered("vclQueryNetwork", [&](Log&) {
        const auto found = lookup<QueryNetwork>(query);
        write_bytes(size, out, found->layers.data(), found->layers.size());
    });
}

VCL vclQueryNetworkDestroy(vcl_query_handle_t query) {
    return answered("vclQueryNetworkDestroy", [&](Log&) { remove<QueryNetwork>(query); });
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
