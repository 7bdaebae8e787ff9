#include "memory/mapped_files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "base/error_info.hpp"
#include "interface/schema.hpp"
#include "memory/same_pages.hpp"

namespace softnpu {

// ---------------------------------------------------------------- mapped files

namespace {

bool is_file(int fd, const Area& area) {
    struct stat info;
    struct statfs system;
    if (fstat(fd, &info) != 0 || info.st_ino != area.inode || fstatfs(fd, &system) != 0) return false;
    if (system.f_type != OVERLAYFS_SUPER_MAGIC && system.f_type != BTRFS_SUPER_MAGIC)
        return major(info.st_dev) == area.major && minor(info.st_dev) == area.minor;
    // Each has a device for itself and one for each layer or subvolume, two of which may have a file of the
    // same number; on an overlay a file that was written after it had been mapped is another one of the same
    // number. To look at a private page that may be written would copy it.
    const bool is_copied = area.access[3] == 'p' && area.access[1] == 'w';
    return !is_copied && is_same_page(area.start, fd, area.offset);
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

// ---------------------------------------------------------------- memory of other programs

bool is_shared_memory(int fd) {
    struct statfs system;
    struct stat status;
    return fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC && fstat(fd, &status) == 0 &&
           S_ISREG(status.st_mode);
}

bool has_fixed_size(int fd) {
    constexpr int SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    const int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & SEALS) == SEALS;
}

std::shared_ptr<Block> import_foreign_file(MemoryPool& pool, int fd, std::string_view kind) {
    const std::string name = format("descriptor %d of shared memory", fd);
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
        throw invalid_argument(name, "open for reading only", "a descriptor for reading and writing");
    struct stat status;
    if (fstat(fd, &status) != 0 || status.st_size <= 0)
        throw invalid_argument(name, "an empty file", "a file with the bytes that are to be shared");
    return pool.import_part(fd, 0, nullptr, static_cast<size_t>(status.st_size), kind, true);
}

// ---------------------------------------------------------------- memory of this process

namespace {

Error not_shared(const std::string& name, const std::string& found) {
    return unsupported_feature(
        name, found, "a shared mapping of a file of memfd_create or shm_open",
        "copy the data into memory of the device, or take the tensor from such a file");
}

void check_length(const std::string& name, const Area& area, int fd, uint64_t end) {
    struct stat status;
    if (fstat(fd, &status) != 0 || static_cast<uint64_t>(status.st_size) < end)
        throw not_shared(name, "behind the end of " + area.path);
}

// The daemon gets no access to the file beyond reading it, and judges its file system.
std::shared_ptr<Block> import_for_reading(MemoryPool& pool, const std::string& name, const Area& area,
                                          uint8_t* pages, size_t size) {
    if (area.access[0] != 'r') throw not_shared(name, "not readable");
    Fd fd = open_mapped_file(area);
    if (fd.valid() && (fcntl(fd.get(), F_GETFL) & O_ACCMODE) != O_RDONLY) {
        fd = Fd(open(format("/proc/self/fd/%d", fd.get()).c_str(), O_RDONLY | O_CLOEXEC));
        if (!is_file(fd.get(), area)) fd.reset();  // opened anew on an overlay
    }
    if (!fd.valid()) throw not_shared(name, area.path + " cannot be opened");
    const uint64_t offset = area.offset + (reinterpret_cast<uint64_t>(pages) - area.start);
    check_length(name, area, fd.get(), offset + size);
    return pool.import_part(fd.get(), offset, pages, size, schema::memory_kind::HOST, true, true);
}

}  // namespace

std::shared_ptr<Block> import_system_memory(MemoryPool& pool, void* address, size_t size, bool for_reading) {
    if (address == nullptr) throw invalid_null_pointer("system memory", "null pointer", "an address");
    if (size == 0) throw unsupported_size("system memory", "0 bytes", "at least 1");
    const auto start = reinterpret_cast<uint64_t>(address);
    const std::string name = format("%zu bytes at %p", size, address);
    const bool whole_pages = size % schema::blob::PAGE == 0;
    if (start % schema::blob::PAGE != 0 || !(whole_pages || for_reading))
        throw invalid_argument(name, "parts of pages", "whole pages of 4096 bytes");
    const auto area = find_area(start);
    if (!area || size > area->end - start) throw not_shared(name, "not in one mapping");
    if (area->access[3] != 's' || area->inode == 0)
        throw not_shared(name, "private pages, which no other process can reach");
    const bool writable = whole_pages && area->access.compare(0, 2, "rw") == 0;
    if (!writable && !for_reading) throw not_shared(name, "not readable and writable");
    const Fd fd = writable ? open_mapped_file(*area, O_RDWR) : Fd();
    auto* const pages = static_cast<uint8_t*>(address);
    const bool in_memory = fd.valid() && (has_fixed_size(fd.get()) || is_shared_memory(fd.get()));
    if (for_reading && !in_memory) return import_for_reading(pool, name, *area, pages, size);
    if (!fd.valid()) throw not_shared(name, area->path + " cannot be opened");
    const uint64_t offset = area->offset + (start - area->start);
    if (has_fixed_size(fd.get()))
        return pool.import_part(fd.get(), offset, pages, size, schema::memory_kind::HOST, false);
    if (!is_shared_memory(fd.get()))
        throw not_shared(name, "in " + area->path + ", which is no shared memory");
    check_length(name, *area, fd.get(), offset + size);
    return pool.import_part(fd.get(), offset, pages, size, schema::memory_kind::HOST, true);
}

}  // namespace softnpu
