#include "session/launch.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/environment.hpp"
#include "base/error_info.hpp"
#include "interface/schema.hpp"

extern char** environ;

namespace softnpu {

namespace {

// ---------------------------------------------------------------- how to start a daemon

// The folder of this library; that of the drop-in loader is `loader`.
std::string own_folder() {
    Dl_info info;
    char path[PATH_MAX];
    if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr ||
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

// The Python that has softnpu, as the first words of a command: `SOFTNPU_PYTHON`, that of the environment
// which this library is installed in, or that of the `softnpu` on PATH. Empty when none is found.
std::vector<std::string> find_python() {
    const char* const chosen = variable(schema::environment::PYTHON);
    std::string python = chosen == nullptr ? "" : chosen;
    if (python.empty()) python = python_of_installation();
    if (python.empty()) python = python_of_script();
    if (python.empty()) return {};
    return {python, "-P"};
}

// The part of this process's environment inherited by a daemon: the lists of interface.md, section 1. Its
// heaps have huge pages, unless the program's tunables, which come last, say otherwise.
std::vector<std::string> environment_of_daemon() {
    namespace lists = schema::environment;
    std::vector<std::string> kept;
    std::string tunables(lists::HUGE_PAGES);
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string_view text = *entry;
        const std::string_view name = text.substr(0, text.find('='));
        if (name == lists::TUNABLES) {
            const std::string_view chosen = text.substr(std::min(name.size() + 1, text.size()));
            const bool asks = chosen.find(lists::HUGE_PAGES) != chosen.npos;
            if (asks) tunables.clear();
            if (!asks && !chosen.empty()) tunables += ':';
            tunables += chosen;
        } else if (is_of_daemon(name)) {
            kept.emplace_back(text);
        }
    }
    kept.push_back(std::string(lists::TUNABLES) + '=' + tunables);
    return kept;
}

// ---------------------------------------------------------------- starting it

constexpr uint64_t SECOND = 1000000000;
constexpr uint64_t START_NS = 60 * SECOND;
constexpr int MOST_STARTS = 3;
// To start a daemon takes others a few seconds, at most: one who takes longer was stopped.
constexpr uint64_t OTHERS_NS = 10 * SECOND;
constexpr useconds_t PAUSE_US = 10000;  // flock has no time-out
constexpr const char* DAEMON_MODULE = "softnpu.emulator.autostart";

Error no_daemon(const std::string& path, const std::string& found, const std::string& hint) {
    return uninitialized("daemon at " + path, found, "a running daemon", hint);
}

// What serialises clients: one starts the daemon, the others connect to it afterwards.
Fd open_folder(const std::string& path) {
    Fd gate(open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!gate.valid()) {
        throw no_daemon(path, folder_of(path) + ": " + errno_text(errno),
                        "choose another path with SOFTNPU_SOCKET");
    }
    return gate;
}

bool lock(const Fd& gate, const std::string& path) {
    if (flock(gate.get(), LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK && errno != EINTR) throw no_daemon(path, "flock: " + errno_text(errno), "");
    return false;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> made;
    for (auto& text : texts) made.push_back(text.data());
    made.push_back(nullptr);
    return made;
}

struct Actions {
    posix_spawn_file_actions_t value;
    Actions() { posix_spawn_file_actions_init(&value); }
    ~Actions() { posix_spawn_file_actions_destroy(&value); }
};

struct Attributes {
    posix_spawnattr_t value;
    Attributes() {
        posix_spawnattr_init(&value);
        // the program may block or ignore signals; the daemon starts with the defaults
        sigset_t none, all;
        sigemptyset(&none);
        sigfillset(&all);
        posix_spawnattr_setsigmask(&value, &none);
        posix_spawnattr_setsigdefault(&value, &all);
        posix_spawnattr_setflags(&value, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    }
    ~Attributes() { posix_spawnattr_destroy(&value); }
};

pid_t spawn(std::vector<std::string> command, int output) {
    std::vector<std::string> environment = environment_of_daemon();
    Actions actions;
    posix_spawn_file_actions_addopen(&actions.value, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions.value, output, 1);
    posix_spawn_file_actions_adddup2(&actions.value, output, 2);
#if defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 34)
    // a daemon should keep none of the program's descriptors
    posix_spawn_file_actions_addclosefrom_np(&actions.value, 3);
#endif
#endif
    Attributes attributes;
    pid_t child = 0;
    const int code = posix_spawn(&child, command[0].c_str(), &actions.value, &attributes.value,
                                 pointers(command).data(), pointers(environment).data());
    if (code != 0) {
        throw uninitialized(command[0], errno_text(code), "a Python that has softnpu",
                            "name one with SOFTNPU_PYTHON");
    }
    return child;
}

// Reads the output of the starter to its end; false after 60 s.
bool read_output(int fd, std::string& text) {
    const uint64_t end = now_ns() + START_NS;
    for (uint64_t now = now_ns(); now < end; now = now_ns()) {
        pollfd entry{fd, POLLIN, 0};
        const int ready = poll(&entry, 1, static_cast<int>((end - now) / 1000000) + 1);
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) return false;
        char part[4096];
        const ssize_t size = read(fd, part, sizeof part);
        if (size == 0) return true;
        if (size > 0) text.append(part, static_cast<size_t>(size));
    }
    return false;
}

// The reason in the last line of the starter's output.
std::string reason_in(const std::string& text) {
    size_t end = text.find_last_not_of(" \n");
    if (end == std::string::npos) return "it ended without output";
    const size_t begin = text.rfind('\n', end);
    const std::string line = text.substr(begin == std::string::npos ? 0 : begin + 1,
                                         end - (begin == std::string::npos ? 0 : begin + 1) + 1);
    const std::string lead = "{\"reason\": \"";
    if (line.compare(0, lead.size(), lead) == 0)
        return line.substr(lead.size(), line.size() - lead.size() - 2);
    return line;
}

void run_starter(const std::string& path) {
    std::vector<std::string> command = find_python();
    if (command.empty()) {
        throw no_daemon(path, "no socket there, and no Python with softnpu was found to start one",
                        "start one with 'softnpu daemon', or name that Python with SOFTNPU_PYTHON");
    }
    command.insert(command.end(), {"-m", DAEMON_MODULE, path});
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        throw out_of_host_memory("pipe", errno_text(errno), "a free descriptor");
    }
    Fd reader(ends[0]), writer(ends[1]);
    const pid_t child = spawn(command, writer.get());
    writer.reset();
    std::string output;
    const bool ended = read_output(reader.get(), output);
    if (!ended) kill(child, SIGKILL);
    int status = 0;
    pid_t waited;
    do {
        waited = waitpid(child, &status, 0);
    } while (waited < 0 && errno == EINTR);
    if (!ended) throw no_daemon(path, "it did not come up within 60 s", "read " + path + ".log");
    // without a status (the program reaps all children) the socket decides
    if (waited == child && !(WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
        throw no_daemon(path, reason_in(output),
                        "read " + path + ".log, or start it by hand: softnpu daemon --foreground");
    }
}

}  // namespace

Launch::Launch() : endpoint_(default_endpoint()), end_(now_ns() + START_NS) {}

Fd Launch::connect() {
    Attempt tried = attempt();
    if (tried.socket.valid()) return std::move(tried.socket);
    if (is_privileged()) {
        throw no_daemon(endpoint_.path,
                        tried.reason + ", and a program with the rights of another user starts none",
                        "start one with 'softnpu daemon'");
    }
    const char* const lease = variable(schema::environment::LEASE);
    if (lease != nullptr && *lease != '\0') {
        throw no_daemon(endpoint_.path, tried.reason,
                        "take another lease: that in SOFTNPU_LEASE ended with it");
    }
    const char* const autostart = variable(schema::environment::AUTOSTART);
    if (autostart != nullptr && std::strcmp(autostart, "0") == 0) {
        throw no_daemon(endpoint_.path, tried.reason,
                        "start one with 'softnpu daemon', or let clients do so (unset SOFTNPU_AUTOSTART)");
    }
    return start();
}

bool Launch::may_try_again() const { return starts_ < MOST_STARTS && !again_ && now_ns() < end_; }

Attempt Launch::attempt() {
    Attempt tried = try_to_connect(endpoint_.path);
    if (tried.socket.valid()) {
        const Peer peer = peer_of(tried.socket.get());
        again_ = peer.pid != 0 && peer.pid == peer_;
        peer_ = peer.pid;
        own_ = peer.user == geteuid();
        check_peer(peer, endpoint_.path, endpoint_.named);
    }
    return tried;
}

Fd Launch::start() {
    const Fd gate = open_folder(endpoint_.path);
    // one who starts a daemon may have been stopped, and after a while this goes on beside others: of several
    // daemons the first one to lock the socket serves
    const uint64_t others_end = now_ns() + OTHERS_NS;
    Attempt tried;
    while (!lock(gate, endpoint_.path) && now_ns() < others_end) {
        tried = attempt();
        if (tried.socket.valid()) return std::move(tried.socket);
        usleep(PAUSE_US);
    }
    tried = attempt();
    while (!tried.socket.valid()) {
        run_starter(endpoint_.path);
        ++starts_;
        tried = attempt();
        if (!tried.socket.valid() && now_ns() >= end_) {
            throw no_daemon(endpoint_.path, "it was started but: " + tried.reason,
                            "read " + endpoint_.path + ".log");
        }
    }
    return std::move(tried.socket);
}

}  // namespace softnpu
