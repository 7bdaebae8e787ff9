#include "session/endpoint.hpp"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <vector>

#include "base/environment.hpp"
#include "base/error_info.hpp"
#include "interface/schema.hpp"

namespace softnpu {

namespace {

constexpr size_t MAX_SUN_PATH = 107;
constexpr long CONNECT_S = 5;

// root may write to paths named by a variable from another user's session
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
    const timeval timeout{CONNECT_S, 0};
    setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
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

// ---------------------------------------------------------------- its owner

namespace {

constexpr uid_t ROOT = 0;
constexpr int MAX_LINKS = 40;  // as many as the kernel follows
constexpr size_t ACCOUNT_BYTES = 16384;

// Whether a user id stands for any user of the machine outside of this user namespace, root among them.
bool is_unmapped(uid_t user) {
    uid_t overflow = 0;
    std::ifstream("/proc/sys/kernel/overflowuid") >> overflow;
    if (user != overflow) return false;
    std::ifstream ranges("/proc/self/uid_map");
    for (uint64_t first, outside, count; ranges >> first >> outside >> count;) {
        if (first <= user && user - first < count) return false;
    }
    return true;
}

// Whether a group is that of one user alone, as accounts are made with a umask of 002.
bool is_private_group(gid_t group, uid_t user) {
    std::vector<char> group_text(ACCOUNT_BYTES), user_text(ACCOUNT_BYTES);
    struct group of_group, *found_group = nullptr;
    struct passwd of_user, *found_user = nullptr;
    getgrgid_r(group, &of_group, group_text.data(), group_text.size(), &found_group);
    getpwuid_r(user, &of_user, user_text.data(), user_text.size(), &found_user);
    if (found_group == nullptr || found_user == nullptr) return false;
    if (of_user.pw_gid != group || std::strcmp(of_group.gr_name, of_user.pw_name) != 0) return false;
    for (char** member = of_group.gr_mem; *member != nullptr; ++member) {
        if (std::strcmp(*member, of_user.pw_name) != 0) return false;
    }
    return true;
}

bool has_access_list(const std::string& path) {
    const ssize_t size = getxattr(path.c_str(), "system.posix_acl_access", nullptr, 0);
    return size >= 0 || (errno != ENODATA && errno != ENOTSUP);
}

bool others_write(const std::string& path, const struct stat& info) {
    if ((info.st_mode & S_IWOTH) != 0) return true;
    if ((info.st_mode & S_IWGRP) == 0) return false;
    return has_access_list(path) || !is_private_group(info.st_gid, info.st_uid);
}

// Checks every directory and symbolic link on the way to a directory.
class PathCheck {
public:
    PathCheck(const std::string& folder, uid_t user) : user_(user) {
        char real[PATH_MAX];
        if (realpath(folder.c_str(), real) == nullptr) throw refusal(folder, errno_text(errno));
        end_ = real;
        push(folder);
    }

    void check() {
        std::string at = "/";
        step(at);
        while (!left_.empty()) {
            const std::string part = left_.back();
            left_.pop_back();
            if (part == "..") {
                at = folder_of(at);
                continue;
            }
            const std::string name = at == "/" ? at + part : at + "/" + part;
            const std::string target = step(name);
            if (target.empty()) {
                at = name;
            } else {
                if (target[0] == '/') at = "/";
                push(target);
            }
        }
    }

private:
    void push(const std::string& path) {
        for (size_t end = path.size(); end > 0;) {
            const size_t slash = path.rfind('/', end - 1);
            const size_t begin = slash == std::string::npos ? 0 : slash + 1;
            const std::string part = path.substr(begin, end - begin);
            if (!part.empty() && part != ".") left_.push_back(part);
            end = slash == std::string::npos ? 0 : slash;
        }
    }

    // Checks a directory or a link; the target of the link.
    std::string step(const std::string& name) {
        struct stat info;
        if (lstat(name.c_str(), &info) != 0) throw refusal(name, errno_text(errno));
        const uid_t owner = info.st_uid;
        if (owner != user_ && owner != geteuid() && owner != ROOT && !is_unmapped(owner)) {
            throw refusal(name, format("it belongs to user %u", owner));
        }
        if (S_ISLNK(info.st_mode)) {
            char target[PATH_MAX];
            const ssize_t size = ++links_ > MAX_LINKS ? -1 : readlink(name.c_str(), target, sizeof target);
            if (size <= 0) throw refusal(name, "a link that cannot be followed");
            return {target, static_cast<size_t>(size)};
        }
        const bool sticky = (info.st_mode & S_ISVTX) != 0;
        if ((name == end_ || !sticky) && others_write(name, info)) {
            throw refusal(name, format("others may write it (mode %o): this may be anybody's socket",
                                       info.st_mode & 07777));
        }
        return {};
    }

    Error refusal(const std::string& name, const std::string& found) const {
        return insufficient_permissions(
            name, found,
            format("directories that only user %u or root may write, for a daemon of user %u", user_, user_),
            "have the owner of the daemon move it into a directory that only the owner can write");
    }

    const uid_t user_;
    std::string end_;
    std::vector<std::string> left_;  // the last one is the next
    int links_ = 0;
};

Error not_trusted(const std::string& path, const std::string& found, const std::string& more = {},
                  const std::string& hint = "choose another path with SOFTNPU_SOCKET") {
    return insufficient_permissions("daemon at " + path, found,
                                    format("a daemon of user %u or root", geteuid()) + more, hint);
}

}  // namespace

Peer peer_of(int socket) {
    ucred peer{};
    socklen_t size = sizeof peer;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        throw uninitialized("socket of the daemon", errno_text(errno),
                            "a socket whose peer the kernel knows");
    }
    return {peer.pid, peer.uid};
}

void check_peer(const Peer& peer, const std::string& path, bool named) {
    if (peer.user == geteuid() || peer.user == ROOT) return;
    if (!named) throw not_trusted(path, format("it belongs to user %u", peer.user));
    struct stat info;
    if (lstat(path.c_str(), &info) != 0) throw not_trusted(path, errno_text(errno));
    if (info.st_uid != peer.user) {
        throw not_trusted(path, format("user %u serves a socket of user %u", peer.user, info.st_uid),
                          ", or of the owner of the socket");
    }
    try {
        PathCheck(folder_of(path), peer.user).check();
    } catch (const Error& failure) {
        const ErrorInfo& info = failure.info();
        throw not_trusted(path,
                          format("it belongs to user %u, and ", peer.user) + info.object + ": " + info.found,
                          ", or " + info.expected, info.hint);
    }
}

}  // namespace softnpu
