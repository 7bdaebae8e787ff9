// An audit library (LD_AUDIT) that gives OpenVINO softnpu's compiler in the place of Intel's: whatever path
// OpenVINO opens it by, present or not. Nothing else of the program changes.
//
// It uses no library, not even that of C: else each program would load a second one. Its only import is where
// the dynamic linker found the first words of the process, which include the environment.
#include <stdint.h>

extern "C" void* __libc_stack_end;

namespace {

constexpr const char* OURS = "/libsoftnpu_audit.so";
constexpr const char* TARGET = "/loader/libze_loader.so.1";
constexpr unsigned LONGEST = 4096;
constexpr uint32_t NEWEST_KNOWN = 2;

char target[LONGEST + 64];

bool same(const char* text, const char* end, const char* other) {
    for (; text != end && *text != '\0' && *text == *other; ++text) ++other;
    return (text == end || *text == '\0') && *other == '\0';
}

unsigned length_of(const char* text) {
    unsigned length = 0;
    while (text[length] != '\0') ++length;
    return length;
}

// The value of LD_AUDIT when the process started.
const char* own_variable() {
    char** word = static_cast<char**>(__libc_stack_end) + 1;
    while (*word != nullptr) ++word;  // the arguments
    for (++word; *word != nullptr; ++word)
        if (same(*word, *word + 9, "LD_AUDIT=")) return *word + 9;
    return nullptr;
}

// Finds the driver, whose folder lies beside this file.
void find_target() {
    const unsigned tail = length_of(OURS);
    for (const char* at = own_variable(); at != nullptr;) {
        const char* end = at;
        while (*end != '\0' && *end != ':') ++end;
        const unsigned size = static_cast<unsigned>(end - at);
        if (size > tail && size < LONGEST && same(end - tail, end, OURS)) {
            char* out = target;
            for (; at != end - tail; ++at) *out++ = *at;
            for (const char* rest = TARGET; *rest != '\0'; ++rest) *out++ = *rest;
            return;
        }
        at = *end == ':' ? end + 1 : nullptr;
    }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) uint32_t la_version(uint32_t version) {
    find_target();
    return version < NEWEST_KNOWN ? version : NEWEST_KNOWN;
}

extern "C" __attribute__((visibility("default"))) char* la_objsearch(const char* name, uintptr_t*, unsigned) {
    const char* base = name;
    for (const char* at = name; *at != '\0'; ++at)
        if (*at == '/') base = at + 1;
    const char* const end = base + length_of(base);
    const bool wanted = target[0] != '\0' && base != name &&
                        (same(base, end, "libopenvino_intel_npu_compiler_loader.so") ||
                         same(base, end, "libopenvino_intel_npu_compiler.so"));
    return wanted ? target : const_cast<char*>(name);
}
