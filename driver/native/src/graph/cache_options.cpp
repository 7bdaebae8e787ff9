#include "graph/cache_options.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "base/environment.hpp"
#include "wire/msgpack.hpp"

namespace softnpu {

namespace {

constexpr uint64_t DEFAULT_LIMIT = 4ull << 30;
constexpr const char* FOLDER = "/ze_intel_npu_cache";

std::string chosen_directory() {
    if (const char* const chosen = variable("ZE_INTEL_NPU_CACHE_DIR")) return chosen;
    const char* const base = variable("XDG_CACHE_HOME");
    if (base != nullptr && *base != '\0') return std::string(base) + FOLDER;
    const char* const home = variable("HOME");
    return std::string(home != nullptr && *home != '\0' ? home : ".") + "/.cache" + FOLDER;
}

// The limit that a call has set, and the variable at that time.
struct Chosen {
    std::mutex mutex;
    bool set = false;
    std::optional<std::string> variable;
    uint64_t limit = 0;
};
Chosen& chosen() {
    static auto* const only = new Chosen;  // never destroyed: other threads may still ask
    return *only;
}

std::optional<std::string> limit_variable() {
    const char* const text = variable("ZE_INTEL_NPU_CACHE_SIZE");
    return text == nullptr ? std::nullopt : std::optional<std::string>(text);
}

// Anything but a number counts as 0, which stores nothing.
uint64_t parsed(const std::optional<std::string>& text) {
    if (!text) return DEFAULT_LIMIT;
    std::string digits = *text;
    const size_t begin = digits.find_first_not_of(" \t\n"), end = digits.find_last_not_of(" \t\n");
    if (begin == std::string::npos) return 0;
    digits = digits.substr(begin, end - begin + 1);
    if (digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) return 0;
    return std::strtoull(digits.c_str(), nullptr, 10);
}

}  // namespace

std::optional<CacheOptions> cache_options() {
    if (is_privileged()) return std::nullopt;  // no directory is configured
    std::string directory = chosen_directory();
    if (directory.empty()) return std::nullopt;
    if (directory[0] != '/') {
        // the compiler has a working directory of its own
        char here[PATH_MAX];
        if (getcwd(here, sizeof here) == nullptr) return std::nullopt;
        directory = std::string(here) + "/" + directory;
    }
    if (!is_utf8(directory)) {
        log_once("no cache of compiled models: the name of directory '" + in_utf8(directory) +
                 "' is not UTF-8");
        return std::nullopt;
    }
    return CacheOptions{directory, cache_limit()};
}

uint64_t cache_limit() {
    const auto text = limit_variable();
    {
        std::lock_guard lock(chosen().mutex);
        if (chosen().set && chosen().variable == text) return chosen().limit;
    }
    return parsed(text);
}

void set_cache_limit(uint64_t limit) {
    const auto text = limit_variable();
    std::lock_guard lock(chosen().mutex);
    chosen().set = true;
    chosen().variable = text;
    chosen().limit = limit;
}

uint64_t bytes_in(const CacheOptions& options) {
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(options.directory.c_str()), closedir);
    if (folder == nullptr) return 0;  // nothing was stored yet
    uint64_t bytes = 0;
    while (const dirent* const entry = readdir(folder.get())) {
        struct stat info;
        if (fstatat(dirfd(folder.get()), entry->d_name, &info, 0) == 0 && S_ISREG(info.st_mode)) {
            bytes += static_cast<uint64_t>(info.st_size);
        }
    }
    return bytes;
}

}  // namespace softnpu
