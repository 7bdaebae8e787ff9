#include "session/ownership.hpp"

#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <vector>

#include "base/fault.hpp"
#include "session/places.hpp"

namespace softnpu {

namespace {

constexpr uid_t ROOT = 0;
constexpr int MOST_LINKS = 40;  // as many as the kernel follows
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

// The way to a directory, with every symbolic link on it.
class Way {
public:
    Way(const std::string& folder, uid_t user) : user_(user) {
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

    // Checks a directory or a link; where the link leads.
    std::string step(const std::string& name) {
        struct stat info;
        if (lstat(name.c_str(), &info) != 0) throw refusal(name, errno_text(errno));
        const uid_t owner = info.st_uid;
        if (owner != user_ && owner != geteuid() && owner != ROOT && !is_unmapped(owner)) {
            throw refusal(name, format("it belongs to user %u", owner));
        }
        if (S_ISLNK(info.st_mode)) {
            char target[PATH_MAX];
            const ssize_t size = ++links_ > MOST_LINKS ? -1 : readlink(name.c_str(), target, sizeof target);
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
        return error(
            ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS, name, found,
            format("directories that only user %u or root may write, for a daemon of user %u", user_, user_),
            "have the owner of the daemon move it into a directory that only the owner can write");
    }

    const uid_t user_;
    std::string end_;
    std::vector<std::string> left_;  // the last one is the next
    int links_ = 0;
};

Error not_trusted(const std::string& path, const std::string& found, const std::string& more = {},
                  const std::string& hint = "choose another place with SOFTNPU_SOCKET") {
    return error(ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS, "daemon at " + path, found,
                 format("a daemon of user %u or root", geteuid()) + more, hint);
}

}  // namespace

Peer peer_of(int socket) {
    ucred found{};
    socklen_t size = sizeof found;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &found, &size) != 0) {
        throw error(ZE_RESULT_ERROR_UNINITIALIZED, "socket of the daemon", errno_text(errno),
                    "a socket whose peer the kernel knows");
    }
    return {found.pid, found.uid};
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
        Way(folder_of(path), peer.user).check();
    } catch (const Error& failure) {
        const ErrorInfo& fault = failure.fault();
        throw not_trusted(
            path, format("it belongs to user %u, and ", peer.user) + fault.object + ": " + fault.found,
            ", or " + fault.expected, fault.hint);
    }
}

}  // namespace softnpu
