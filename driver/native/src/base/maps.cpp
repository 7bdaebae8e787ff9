#include "base/maps.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cinttypes>
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

}  // namespace

std::vector<Area> read_areas() {
    std::vector<Area> areas;
    std::ifstream file("/proc/self/maps");
    for (std::string line; std::getline(file, line);) {
        Area area;
        char access[8];
        int path = 0;
        if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64 " %x:%x %" SCNu64 " %n",
                        &area.start, &area.end, access, &area.offset, &area.major, &area.minor, &area.inode,
                        &path) < 7) {
            continue;
        }
        area.access = access;
        if (path > 0 && static_cast<size_t>(path) < line.size())
            area.path = line.substr(static_cast<size_t>(path));
        areas.push_back(std::move(area));
    }
    return areas;
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
