#include "session/endpoint.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include "base/environment.hpp"
#include "base/error_info.hpp"
#include "interface/schema.hpp"

namespace softnpu {

namespace {

constexpr size_t MAX_SUN_PATH = 107;
constexpr long CONNECT_S = 5;

// root may write what a variable from another user's session names
bool is_own_folder(const std::string& folder) {
    struct stat info;
    return !folder.empty() && stat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) &&
           eaccess(folder.c_str(), W_OK) == 0 && (info.st_uid == geteuid() || info.st_uid == 0);
}

std::string runtime_folder() {
    const char* const chosen = variable("XDG_RUNTIME_DIR");
    if (chosen != nullptr && is_own_folder(chosen)) return std::string(chosen) + "/softnpu";
    const std::string usual = format("/run/user/%u", geteuid());
    if (is_own_folder(usual)) return usual + "/softnpu";
    return format("/tmp/softnpu-%u", geteuid());
}

void check_folder(const std::string& folder) {
    // a privileged program starts no daemon and creates no directory
    if (!is_privileged() && mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
        throw uninitialized("runtime directory " + folder, errno_text(errno),
                            "a directory to hold the socket", "choose another path with SOFTNPU_SOCKET");
    }
    struct stat info;
    if (lstat(folder.c_str(), &info) != 0) {
        throw uninitialized("runtime directory " + folder, errno_text(errno),
                            "a directory with the socket of a daemon", "start one with 'softnpu daemon'");
    }
    if (S_ISDIR(info.st_mode) && info.st_uid == geteuid() && (info.st_mode & 077) == 0) {
        return;
    }
    throw insufficient_permissions("runtime directory " + folder,
                                   format("owner %u, mode %o", info.st_uid, info.st_mode & 07777),
                                   format("a directory of owner %u with mode 700", geteuid()),
                                   "correct it, or choose another path with SOFTNPU_SOCKET");
}

// The address of a path; for a long one through a descriptor of its directory, which `folder` keeps.
sockaddr_un address_of(const std::string& path, Fd& folder) {
    std::string name = path;
    if (name.size() > MAX_SUN_PATH) {
        folder = Fd(open(folder_of(path).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
        if (!folder.valid()) {
            throw uninitialized("socket " + path, errno_text(errno), "a directory to hold it");
        }
        name = format("/proc/self/fd/%d/", folder.get()) + path.substr(path.rfind('/') + 1);
        if (name.size() > MAX_SUN_PATH) {
            throw invalid_size("socket " + path, "a file name that is too long",
                               format("at most %zu bytes", MAX_SUN_PATH - 24));
        }
    }
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.c_str(), name.size() + 1);
    return address;
}

}  // namespace

Endpoint default_endpoint() {
    const char* const chosen = variable(schema::environment::SOCKET);
    if (chosen != nullptr && *chosen != '\0') {
        if (*chosen == '/') return {chosen, true};
        char here[PATH_MAX];
        return {getcwd(here, sizeof here) == nullptr ? chosen : std::string(here) + "/" + chosen, true};
    }
    const std::string folder = runtime_folder();
    check_folder(folder);
    return {folder + "/softnpu.sock", false};
}

std::string folder_of(const std::string& path) {
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return ".";
    return slash == 0 ? "/" : path.substr(0, slash);
}

Attempt try_to_connect(const std::string& path) {
    Fd folder;
    const sockaddr_un address = address_of(path, folder);
    Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!socket.valid()) {
        throw out_of_host_memory("socket", errno_text(errno), "a free descriptor");
    }
    const timeval patience{CONNECT_S, 0};
    setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    int result;
    do {
        result = connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    } while (result != 0 && errno == EINTR);
    const int code = errno;
    if (result == 0) {
        const timeval endless{0, 0};
        setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &endless, sizeof endless);
        return {std::move(socket), {}};
    }
    if (code == ENOENT) return {Fd(), "no socket there"};
    if (code == ECONNREFUSED) return {Fd(), "a socket without a daemon"};
    if (code == EAGAIN) return {Fd(), format("it did not accept within %ld s", CONNECT_S)};
    throw uninitialized("daemon at " + path, errno_text(code), "the socket of a softnpu daemon",
                        "choose it with SOFTNPU_SOCKET");
}

}  // namespace softnpu
