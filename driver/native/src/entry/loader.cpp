// Functions of the loader, which this library replaces.

#include "base/output.hpp"
#include "entry/boundary.hpp"
#include "entry/calls.hpp"

using namespace softnpu;

namespace {

// A loader of this version has the functions of API 1.15. From 1.18.5 on programs use zeInitDrivers.
constexpr int MAJOR = 1, MINOR = 27, PATCH = 0;

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

ZE_EXPORT ze_result_t zelGetLoaderVersion(ComponentVersion* version) {
    return guarded(__func__, [&] {
        require_nonnull(version, "version");
        describe(*version);
    });
}

ZE_EXPORT ze_result_t zelLoaderGetVersions(size_t* num_elems, ComponentVersion* versions) {
    return guarded(__func__, [&] {
        require_nonnull(num_elems, "num_elems");
        if (versions != nullptr && *num_elems > 0) describe(*versions);
        *num_elems = 1;
    });
}

// Handles are not wrapped here.
ZE_EXPORT ze_result_t zelLoaderTranslateHandle(uint32_t, void* handleIn, void** handleOut) {
    return guarded(__func__, [&] {
        require_nonnull(handleOut, "handleOut");
        *handleOut = handleIn;
    });
}

// The driver may be called until the process ends, in any order of destruction.
ZE_EXPORT ze_result_t zelSetDriverTeardown() { return ZE_RESULT_SUCCESS; }
ZE_EXPORT ze_result_t zelRegisterTeardownCallback(void*, void*, uint32_t* index) {
    if (index != nullptr) *index = 0;
    return ZE_RESULT_SUCCESS;
}
ZE_EXPORT ze_bool_t zelCheckIsLoaderInTearDown() { return 0; }
ZE_EXPORT void zelSetDelayLoaderContextTeardown() {}
