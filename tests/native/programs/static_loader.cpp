// What Intel's static loader does at its border: it loads the machine's loader, initialises it, takes the
// tables of functions, and exchanges callbacks for the end of either.
#include <dlfcn.h>

#include <string>

#include "npu.hpp"

namespace {

void* loader;

template <class F>
F* of(const char* name) {
    void* const found = dlsym(loader, name);
    if (found == nullptr) {
        std::fprintf(stderr, "%s is missing\n", name);
        std::abort();
    }
    return reinterpret_cast<F*>(found);
}

void expect(bool met, const char* what) {
    if (met) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::abort();
}

using Result = ze_result_t();
using Forget = void (*)(uint32_t);

struct Version {
    char component_name[64];
    uint32_t spec_version;
    int numbers[3];
};

void* table[64];

template <class F>
F* entry(const char* getter, size_t index) {
    const auto get = of<ze_result_t(uint32_t, void*)>(getter);
    expect(get(ZE_API_VERSION, table) == ZE_RESULT_SUCCESS, getter);
    return reinterpret_cast<F*>(table[index]);
}

void loader_ends() { std::puts("the loader ends"); }
void never_called() { std::abort(); }

}  // namespace

int main() {
    loader = dlopen("libze_loader.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (loader == nullptr) std::abort();
    expect(of<Result>("zeLoaderInit")() == ZE_RESULT_SUCCESS, "zeLoaderInit");

    const auto versions = of<ze_result_t(size_t*, Version*)>("zelLoaderGetVersionsInternal");
    size_t count = 0;
    Version version{};
    expect(versions(&count, nullptr) == ZE_RESULT_SUCCESS && count == 1, "one version");
    expect(versions(&count, &version) == ZE_RESULT_SUCCESS, "zelLoaderGetVersionsInternal");
    expect(version.component_name == std::string("loader") && version.numbers[0] == 1, "a loader 1.x");

    // tracing: absent, and each way to it says so
    expect(of<void*()>("zeLoaderGetTracingHandle")() == nullptr, "no tracing layer");
    Result** traced = nullptr;
    expect(of<ze_result_t(Result***)>("zelLoaderTracingLayerInit")(&traced) == ZE_RESULT_SUCCESS, "tracing");
    expect(traced[0]() == ZE_RESULT_ERROR_UNSUPPORTED_FEATURE, "a traced function");
    const auto create = entry<Result>("zelGetTracerApiProcAddrTable", 0);
    expect(create() == ZE_RESULT_ERROR_UNSUPPORTED_FEATURE, "zelTracerCreate");
    expect(of<Result>("zelEnableTracingLayer")() == ZE_RESULT_ERROR_UNSUPPORTED_FEATURE, "enabling");
    bool enabled = true;
    expect(of<ze_result_t(bool*)>("zelGetTracingLayerState")(&enabled) == ZE_RESULT_SUCCESS, "state");
    expect(!enabled, "tracing is off");

    bool again = false;
    ze_init_driver_type_desc_t desc{0x20021, nullptr, ZE_INIT_DRIVER_TYPE_FLAG_NPU};
    const auto check = of<ze_result_t(uint32_t, void*, void*, void*, bool*, bool)>("zelLoaderDriverCheck");
    expect(check(0, &desc, nullptr, nullptr, &again, false) == ZE_RESULT_SUCCESS && !again, "the drivers");
    uint32_t drivers = 0;
    const auto init = entry<decltype(zeInitDrivers)>("zeGetGlobalProcAddrTable", 1);
    expect(init(&drivers, nullptr, &desc) == ZE_RESULT_SUCCESS && drivers == 1, "zeInitDrivers");
    ze_driver_handle_t driver = nullptr;
    expect(entry<decltype(zeDriverGet)>("zeGetDriverProcAddrTable", 0)(&drivers, &driver) == 0,
           "zeDriverGet");
    uint32_t devices = 1;
    ze_device_handle_t device = nullptr;
    expect(entry<decltype(zeDeviceGet)>("zeGetDeviceProcAddrTable", 0)(driver, &devices, &device) == 0,
           "get");
    void* original = nullptr;
    const auto translate = of<ze_result_t(uint32_t, void*, void**)>("zelLoaderTranslateHandleInternal");
    expect(translate(1, device, &original) == ZE_RESULT_SUCCESS && original == device, "the same handle");

    // what has no result returns no object, and what was wrong is told
    expect(of<void*()>("zerGetDefaultContext")() == nullptr, "no default context");
    expect(of<void*(void*)>("zeDriverGetDefaultContext")(driver) == nullptr,
           "no default context of a driver");
    expect(of<void*(uint32_t)>("zerTranslateIdentifierToDeviceHandle")(0) == nullptr, "no device");
    expect(of<uint32_t(void*)>("zerTranslateDeviceHandleToIdentifier")(device) == UINT32_MAX,
           "no identifier");
    const char* told = nullptr;
    expect(of<ze_result_t(const char**)>("zerGetLastErrorDescription")(&told) == ZE_RESULT_SUCCESS, "told");
    expect(std::strstr(told, "an NPU does not have it") != nullptr, told);

    const auto on_teardown = of<ze_result_t(void (*)(), Forget*, uint32_t*)>("zelRegisterTeardownCallback");
    Forget forget = nullptr;
    uint32_t kept = 0, forgotten = 0;
    expect(on_teardown(nullptr, &forget, &kept) == ZE_RESULT_ERROR_INVALID_ARGUMENT, "no callback");
    expect(on_teardown(loader_ends, &forget, &kept) == ZE_RESULT_SUCCESS, "a callback");
    expect(on_teardown(never_called, &forget, &forgotten) == ZE_RESULT_SUCCESS, "another");
    expect(kept != forgotten, "two indices");
    forget(forgotten);
    forget(forgotten);
    of<void()>("zelSetDelayLoaderContextTeardown")();
    of<void()>("zelLoaderContextTeardown")();
    expect(!of<bool()>("zelCheckIsLoaderInTearDown")(), "not in teardown");
    dlclose(loader);
    std::puts("done");
}
