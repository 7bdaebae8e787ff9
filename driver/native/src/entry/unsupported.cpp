// Functions that the device does not have: they exist, and answer UNSUPPORTED_FEATURE.
#include "entry/boundary.hpp"
#include "entry/calls.hpp"

// One function for all: it reads no argument.
extern "C" ze_result_t softnpu_unsupported() {
    return softnpu::guarded("function", []() -> ze_result_t {
        throw softnpu::unsupported_feature("function", "an NPU does not have it",
                                           "a function of docs/level-zero.md that is supported");
    });
}

#define UNSUPPORTED(name) \
    extern "C" __attribute__((visibility("default"), alias("softnpu_unsupported"))) ze_result_t name();
#include "entry/unsupported.inc"
#undef UNSUPPORTED
