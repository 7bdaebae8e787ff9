#include "base/maps.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "base/error_info.hpp"

namespace softnpu {

namespace {

bool is_file(int fd, const Area& area) {
    struct stat info;
    return fstat(fd, &info) == 0 && info.st_ino == area.inode && major(info.st_dev) == area.major &&
           minor(info.st_dev) == area.minor;
}

// A memory file, or one that was removed: this process may still have it open.
Fd find_open(const Area& area) {
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
    if (folder == nullptr) return {};
    while (const dirent* const entry = readdir(folder.get())) {
        const int fd = std::atoi(entry->d_name);
        if (entry->d_name[0] == '.' || !is_file(fd, area)) continue;
        Fd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
        if (copy.valid() && is_file(copy.get(), area)) return copy;
    }
    return {};
}

std::optional<Area> parse(const std::string& line) {
    Area area;
    char access[8];
    int path = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64 " %x:%x %" SCNu64 " %n", &area.start,
                    &area.end, access, &area.offset, &area.major, &area.minor, &area.inode, &path) < 7) {
        return std::nullopt;
    }
    area.access = access;
    if (path > 0 && static_cast<size_t>(path) < line.size())
        area.path = line.substr(static_cast<size_t>(path));
    return area;
}

// PROCMAP_QUERY (Linux 6.11) finds one area; to read all of them takes 4 us each.
struct Query {
    uint64_t size;
    uint64_t wanted;  // 0: the area that the address lies in
    uint64_t address;
    uint64_t start;
    uint64_t end;
    uint64_t flags;
    uint64_t page_size;
    uint64_t offset;
    uint64_t inode;
    uint32_t major;
    uint32_t minor;
    uint32_t name_size;
    uint32_t build_id_size;
    uint64_t name;
    uint64_t build_id;
};
static_assert(sizeof(Query) == 104);
constexpr unsigned long QUERY = _IOWR('f', 17, Query);

}  // namespace

std::vector<Area> read_areas() {
    std::vector<Area> areas;
    std::ifstream file("/proc/self/maps");
    for (std::string line; std::getline(file, line);)
        if (auto area = parse(line)) areas.push_back(std::move(*area));
    return areas;
}

std::optional<Area> find_area(uint64_t address) {
    char path[PATH_MAX];
    Query query{};
    query.size = sizeof query;
    query.address = address;
    query.name_size = sizeof path;
    query.name = reinterpret_cast<uint64_t>(path);
    const Fd maps(open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
    if (ioctl(maps.get(), QUERY, &query) == 0) {
        const bool readable = query.flags & 1, writable = query.flags & 2, shared = query.flags & 8;
        return Area{query.start,
                    query.end,
                    std::string(readable ? "r" : "-") + (writable ? "w" : "-") + "-" + (shared ? "s" : "p"),
                    query.offset,
                    query.major,
                    query.minor,
                    query.inode,
                    query.name_size == 0 ? "" : path};
    }
    if (errno == ENOENT) return std::nullopt;
    for (auto& area : read_areas())
        if (area.start <= address && address < area.end) return area;
    return std::nullopt;
}

std::set<uint64_t> areas_with_private_pages() {
    std::set<uint64_t> starts;
    std::ifstream file("/proc/self/smaps");
    uint64_t start = 0;
    for (std::string line; std::getline(file, line);) {
        uint64_t first, end, pages;
        if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " ", &first, &end) == 2) {
            start = first;
        } else if (std::sscanf(line.c_str(), "Anonymous: %" SCNu64, &pages) == 1 && pages != 0) {
            starts.insert(start);
        }
    }
    return starts;
}

Fd open_mapped_file(const Area& area, int access) {
    const std::string names[] = {format("/proc/self/map_files/%" PRIx64 "-%" PRIx64, area.start, area.end),
                                 area.path};
    for (const auto& name : names) {
        Fd fd(open(name.c_str(), access | O_CLOEXEC | O_NONBLOCK));
        if (fd.valid() && is_file(fd.get(), area)) return fd;
    }
    return find_open(area);
}

}  // namespace softnpu
