#include "session/autostart.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

#include "base/environment.hpp"
#include "interface/schema.hpp"
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

template <size_t N>
bool is_among(std::string_view name, const std::string_view (&names)[N]) {
    return std::find(names, names + N, name) != names + N;
}

bool is_of_daemon(std::string_view name) {
    namespace lists = schema::environment;
    if (is_among(name, lists::OF_DAEMON)) return true;
    if (is_among(name, lists::OF_PROGRAMS)) return false;
    return std::any_of(std::begin(lists::PREFIXES_OF_DAEMON), std::end(lists::PREFIXES_OF_DAEMON),
                       [&](std::string_view prefix) { return name.compare(0, prefix.size(), prefix) == 0; });
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
        const std::string_view text = *entry;
        if (is_of_daemon(text.substr(0, text.find('=')))) kept.emplace_back(text);
    }
    return kept;
}

}  // namespace softnpu
