#include "session/autostart.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/environment.hpp"
#include "wire/schema.hpp"
#include "session/endpoint.hpp"

extern char** environ;

namespace softnpu {

namespace {

// The folder of this library; that of the drop-in loader is `loader`.
std::string own_folder() {
    Dl_info info;
    char path[PATH_MAX];
    if (dladdr(reinterpret_cast<const void*>(&find_python), &info) == 0 || info.dli_fname == nullptr ||
        realpath(info.dli_fname, path) == nullptr) {
        return {};
    }
    return folder_of(path);
}

bool runs(const std::string& path) { return access(path.c_str(), X_OK) == 0; }
bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// Installed into PREFIX/lib/pythonX.Y/site-packages/softnpu/...: PREFIX/bin/python.
std::string python_of_installation() {
    const std::string folder = own_folder();
    const size_t package = folder.find("/site-packages/");
    if (package == std::string::npos) return {};
    const std::string library = folder_of(folder.substr(0, package));  // PREFIX/lib
    const std::string python = folder_of(library) + "/bin/python";
    if (runs(python)) return python;
    return runs(python + "3") ? python + "3" : std::string();
}

// The first line of the script `softnpu` on PATH names its Python.
std::string python_of_script() {
    const char* const path = variable("PATH");
    std::istringstream folders(path == nullptr ? "" : path);
    for (std::string folder; std::getline(folders, folder, ':');) {
        const std::string script = folder + "/softnpu";
        if (folder.empty() || !runs(script)) continue;
        std::string line;
        std::ifstream file(script);
        if (!std::getline(file, line) || line.compare(0, 2, "#!") != 0) continue;
        const std::string python =
            line.substr(2, line.find(' ') == std::string::npos ? line.npos : line.find(' ') - 2);
        if (runs(python)) return python;
    }
    return {};
}

// LD_LIBRARY_PATH without the folders of this library; the rest may be needed to run Python at all.
std::string library_path(const std::string& value) {
    const std::string own = own_folder();
    std::istringstream folders(value);
    std::string kept;
    for (std::string folder; std::getline(folders, folder, ':');) {
        char path[PATH_MAX];
        const std::string real = realpath(folder.c_str(), path) == nullptr ? folder : path;
        const bool ours =
            real == own || exists(real + "/libze_softnpu.so") || exists(real + "/../libze_softnpu.so");
        if (!folder.empty() && !ours) kept += (kept.empty() ? "" : ":") + folder;
    }
    return kept;
}

bool is_for_programs(const std::string& name) {
    static const char* const names[] = {"LD_PRELOAD",
                                        "ZE_ENABLE_ALT_DRIVERS",
                                        "ZE_ENABLE_LOADER_DEBUG_TRACE",
                                        schema::environment::SOCKET,
                                        schema::environment::AUTOSTART,
                                        "SOFTNPU_LOG",
                                        schema::environment::PYTHON};
    for (const char* const entry : names) {
        if (name == entry) return true;
    }
    return false;
}

}  // namespace

std::vector<std::string> find_python() {
    const char* const chosen = variable(schema::environment::PYTHON);
    std::string python = chosen == nullptr ? "" : chosen;
    if (python.empty()) python = python_of_installation();
    if (python.empty()) python = python_of_script();
    if (python.empty()) return {};
    return {python, "-P"};
}

std::vector<std::string> environment_of_daemon() {
    std::vector<std::string> kept;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string text = *entry;
        const std::string name = text.substr(0, text.find('='));
        if (is_for_programs(name)) continue;
        if (name == "LD_LIBRARY_PATH") {
            const std::string value = library_path(text.substr(name.size() + 1));
            if (!value.empty()) kept.push_back(name + "=" + value);
        } else {
            kept.push_back(text);
        }
    }
    return kept;
}

}  // namespace softnpu
