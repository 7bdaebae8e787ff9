// The functions of a loader itself: those that programs call, and those by which Intel's static loader, which
// is part of a program, uses the loader of the machine.
#include <array>
#include <cstdint>
#include <map>
#include <mutex>

#include "entry/calls.hpp"

using namespace softnpu;

namespace {

// A loader of this version has the functions of API 1.16. From 1.18.5 on programs use zeInitDrivers.
constexpr int MAJOR = 1, MINOR = 29, PATCH = 0;

struct Version {
    int major;
    int minor;
    int patch;
};

struct ComponentVersion {
    char component_name[64];
    uint32_t spec_version;
    Version component_lib_version;
};
static_assert(sizeof(ComponentVersion) == 80);

void describe(ComponentVersion& out) {
    copy_text(out.component_name, "loader");
    out.spec_version = ZE_API_VERSION;
    out.component_lib_version = {MAJOR, MINOR, PATCH};
}

}  // namespace

#define ALIAS(name, of) extern "C" __attribute__((visibility("default"), alias(#of))) ze_result_t name

// ---------------------------------------------------------------- versions and handles

ZE_EXPORT ze_result_t zelGetLoaderVersion(ComponentVersion* version) {
    return guarded(__func__, [&] {
        require_nonnull(version, "version");
        describe(*version);
    });
}
ALIAS(zelLoaderGetVersion, zelGetLoaderVersion)(ComponentVersion*);

ZE_EXPORT ze_result_t zelLoaderGetVersions(size_t* num_elems, ComponentVersion* versions) {
    return guarded(__func__, [&] {
        require_nonnull(num_elems, "num_elems");
        if (versions != nullptr && *num_elems > 0) describe(*versions);
        *num_elems = 1;
    });
}
ALIAS(zelLoaderGetVersionsInternal, zelLoaderGetVersions)(size_t*, ComponentVersion*);

// Handles are not wrapped here.
ZE_EXPORT ze_result_t zelLoaderTranslateHandle(uint32_t, void* handleIn, void** handleOut) {
    return guarded(__func__, [&] {
        require_nonnull(handleOut, "handleOut");
        *handleOut = handleIn;
    });
}
ALIAS(zelLoaderTranslateHandleInternal, zelLoaderTranslateHandle)(uint32_t, void*, void**);

// ---------------------------------------------------------------- what a static loader calls first
//
// It then takes the tables of functions, and registers its end below. It goes without zelLoaderGetContext,
// which is not here: that gives the loader's own C++ object.

ZE_EXPORT ze_result_t zeLoaderInit() { return ZE_RESULT_SUCCESS; }

// Its other arguments, which differ between versions, are about drivers that share a loader.
ZE_EXPORT ze_result_t zelLoaderDriverCheck(uint32_t flags) { return zeInit(flags); }

// ---------------------------------------------------------------- tracing layer: there is none

ZE_EXPORT void* zeLoaderGetTracingHandle() { return nullptr; }

ZE_EXPORT ze_result_t zelGetTracingLayerState(bool* enabled) {
    return guarded(__func__, [&] {
        require_nonnull(enabled, "enabled");
        *enabled = false;
    });
}

// The table with which some static loaders replace theirs when a program enables tracing. They ask nobody, so
// that each function has to say that it is not there; without the table they would not start.
ZE_EXPORT ze_result_t zelLoaderTracingLayerInit(void** table) {
    return guarded(__func__, [&] {
        require_nonnull(table, "table");
        static auto functions = [] {
            std::array<ze_result_t (*)(), 1024> all;  // more than any version has
            all.fill(softnpu_unsupported);
            return all;
        }();
        *table = functions.data();
    });
}

// The static loaders that have the runtime's functions ask for tracing here, and are refused.
ZE_EXPORT ze_result_t zelLoaderZerTracingLayerInit(void**) { return ZE_RESULT_SUCCESS; }

// ---------------------------------------------------------------- teardown
//
// The driver may be called until the process ends, in any order of destruction.

namespace {

using Callback = void (*)();

struct Teardown {
    std::mutex mutex;
    std::map<uint32_t, Callback> callbacks;
    uint32_t registered = 0;
    bool begun = false;
};

// Never destroyed: programs forget their callbacks in destructors of static objects.
Teardown& teardown() {
    static auto* const made = new Teardown;
    return *made;
}

void forget_callback(uint32_t index) {
    const std::lock_guard<std::mutex> lock(teardown().mutex);
    teardown().callbacks.erase(index);
}

void tear_down() {
    std::map<uint32_t, Callback> callbacks;
    {
        const std::lock_guard<std::mutex> lock(teardown().mutex);
        teardown().begun = true;
        callbacks.swap(teardown().callbacks);
    }
    for (const auto& [index, callback] : callbacks) callback();
}

__attribute__((destructor)) void library_ends() { tear_down(); }

}  // namespace

// A callback for the end of the loader, and in exchange one that the program calls if it ends first.
ZE_EXPORT ze_result_t zelRegisterTeardownCallback(Callback application_callback,
                                                  void (**loader_callback)(uint32_t), uint32_t* index) {
    return guarded(__func__, [&] {
        if (application_callback == nullptr) {
            throw invalid_argument("teardown callback", "null", "a function without parameters");
        }
        require_nonnull(loader_callback, "loader_callback");
        require_nonnull(index, "index");
        const std::lock_guard<std::mutex> lock(teardown().mutex);
        teardown().callbacks.emplace(++teardown().registered, application_callback);
        *index = teardown().registered;
        *loader_callback = forget_callback;
    });
}

ZE_EXPORT ze_result_t zelSetDriverTeardown() {
    return guarded(__func__, [] { tear_down(); });
}

ZE_EXPORT bool zelCheckIsLoaderInTearDown() {
    const std::lock_guard<std::mutex> lock(teardown().mutex);
    return teardown().begun;
}

// For a static loader's own context.
ZE_EXPORT void zelSetDelayLoaderContextTeardown() {}
ZE_EXPORT void zelLoaderContextTeardown() {}

// ---------------------------------------------------------------- the runtime, and others without a result
//
// What Intel's driver lacks here returns what no object is.

ZE_EXPORT ze_result_t zerGetLastErrorDescription(const char** ppString) {
    return guarded(__func__, [&] {
        require_nonnull(ppString, "ppString");
        *ppString = last_description();
    });
}

ZE_EXPORT uint32_t zerTranslateDeviceHandleToIdentifier(ze_device_handle_t) {
    softnpu_unsupported();
    return UINT32_MAX;
}

ZE_EXPORT ze_device_handle_t zerTranslateIdentifierToDeviceHandle(uint32_t) {
    softnpu_unsupported();
    return nullptr;
}

ZE_EXPORT ze_context_handle_t zerGetDefaultContext() {
    softnpu_unsupported();
    return nullptr;
}

ZE_EXPORT ze_context_handle_t zeDriverGetDefaultContext(ze_driver_handle_t) {
    softnpu_unsupported();
    return nullptr;
}
