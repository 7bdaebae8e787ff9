#include "graph/weights.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <set>

#include "base/error_info.hpp"
#include "interface/schema.hpp"
#include "memory/mapped_files.hpp"

namespace softnpu {

namespace {

using schema::blob::PAGE;
using schema::weights::CONSTANT_ALIGNMENT;
using schema::weights::MAX_SOURCES;
constexpr size_t CHUNK = size_t{1} << 30;

uint64_t round_up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

// A piece that lies in a file, at `offset`.
struct InFile {
    FileId file;
    uint64_t offset;
};

using Opened = std::map<FileId, Fd>;
using FileLocations = std::vector<std::optional<InFile>>;

Error no_room(const std::string& name, uint64_t length, int code) {
    return out_of_host_memory(name, format("its %lu bytes cannot be copied: ", length) + errno_text(code),
                              "memory for a copy of the weights");
}

Fd memory_file(const char* name) {
    Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd.valid()) {
        throw out_of_host_memory("memory file", errno_text(errno), "a free descriptor");
    }
    return fd;
}

void write_all(int fd, const void* data, uint64_t length, uint64_t offset, const std::string& name) {
    const auto* const bytes = static_cast<const char*>(data);
    for (uint64_t done = 0; done < length;) {
        // the kernel reads the memory: if unmapped meanwhile, that is an error (EFAULT), not a crash
        const ssize_t size = pwrite(fd, bytes + done, std::min<uint64_t>(length - done, CHUNK),
                                    static_cast<off_t>(offset + done));
        if (size < 0 && errno == EINTR) continue;
        if (size <= 0) throw no_room(name, length, size < 0 ? errno : ENOSPC);
        done += static_cast<uint64_t>(size);
    }
}

void seal(int fd) { fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_WRITE); }

// The mappings that contain a piece; refuses one that is not entirely readable.
std::vector<const Area*> covering(const std::vector<Area>& areas, const Piece& piece) {
    std::vector<const Area*> cover;
    uint64_t at = piece.address;
    const uint64_t end = piece.address + piece.length;
    auto area = std::upper_bound(areas.begin(), areas.end(), at,
                                 [](uint64_t address, const Area& entry) { return address < entry.start; });
    if (area != areas.begin()) --area;
    for (; at < end && area != areas.end(); ++area) {
        if (at < area->start || at >= area->end || area->access[0] != 'r') break;
        cover.push_back(&*area);
        at = area->end;
    }
    if (at < end) {
        throw invalid_argument("constant '" + piece.name + "'",
                               format("%lu bytes at address %#lx, of which %#lx is no readable memory",
                                      piece.length, piece.address, at),
                               "memory of this process that stays valid during the call");
    }
    return cover;
}

class Locator {
public:
    // The range of a file that a piece maps, if its descriptor can be sent.
    std::optional<InFile> locate(const Piece& piece, const std::vector<const Area*>& cover) {
        if (cover.size() != 1 || piece.length == 0) return std::nullopt;
        const Area& area = *cover[0];
        if (area.inode == 0 || area.access.find('w') != std::string::npos || area.path.empty() ||
            area.path[0] != '/') {
            return std::nullopt;
        }
        auto known = opened.find(area.file());
        if (known == opened.end()) {
            Fd fd = open_mapped_file(area);
            if (!fd.valid()) return std::nullopt;
            known = opened.emplace(area.file(), std::move(fd)).first;
        }
        const uint64_t offset = area.offset + piece.address - area.start;
        struct stat info;
        if (fstat(known->second.get(), &info) != 0 ||
            offset + piece.length > static_cast<uint64_t>(info.st_size)) {
            return std::nullopt;
        }
        // written before the mapping became read-only
        if (area.access.size() > 3 && area.access[3] == 'p' && has_private_pages(area)) return std::nullopt;
        return InFile{area.file(), offset};
    }

    Opened opened;

private:
    bool has_private_pages(const Area& area) {
        if (!private_) private_ = areas_with_private_pages();
        return private_->count(area.start) != 0;
    }

    std::optional<std::set<uint64_t>> private_;
};

// Keeps the largest files, as many as a message carries; pieces of the others are copied.
void keep_largest(FileLocations& locations, const std::vector<Piece>& pieces) {
    std::map<FileId, uint64_t> sizes;
    for (size_t index = 0; index < pieces.size(); ++index) {
        if (locations[index]) sizes[locations[index]->file] += pieces[index].length;
    }
    if (sizes.size() < MAX_SOURCES) return;
    std::vector<std::pair<uint64_t, FileId>> order;
    for (const auto& [file, size] : sizes) order.emplace_back(size, file);
    std::sort(order.rbegin(), order.rend());
    for (size_t index = MAX_SOURCES - 1; index < order.size(); ++index) sizes.erase(order[index].second);
    for (auto& location : locations) {
        if (location && sizes.count(location->file) == 0) location.reset();
    }
}

}  // namespace

Fd sealed_copy(const char* name, const void* data, size_t size) {
    Fd fd = memory_file(name);
    write_all(fd.get(), data, size, 0, name);
    seal(fd.get());
    return fd;
}

Gathered gather(const std::vector<Piece>& pieces) {
    const std::vector<Area> areas = read_areas();
    std::vector<std::vector<const Area*>> covers;
    for (const auto& piece : pieces) covers.push_back(covering(areas, piece));
    Locator locator;
    FileLocations locations;
    for (size_t index = 0; index < pieces.size(); ++index)
        locations.push_back(locator.locate(pieces[index], covers[index]));
    keep_largest(locations, pieces);

    // ranges of the files, in the order in which they are met
    std::vector<FileId> order;
    std::map<FileId, std::pair<uint64_t, uint64_t>> ranges;
    // one file for all copies
    std::map<std::pair<uint64_t, uint64_t>, uint64_t> copied;
    std::vector<std::pair<const Piece*, uint64_t>> copies;
    uint64_t copied_size = 0;
    for (size_t index = 0; index < pieces.size(); ++index) {
        const Piece& piece = pieces[index];
        if (const auto& location = locations[index]) {
            const uint64_t end = location->offset + piece.length;
            const auto [entry, fresh] = ranges.try_emplace(location->file, location->offset, end);
            if (fresh) order.push_back(location->file);
            entry->second = {std::min(entry->second.first, location->offset),
                             std::max(entry->second.second, end)};
        } else if (piece.length != 0 && copied.count({piece.address, piece.length}) == 0) {
            copied_size = round_up(copied_size, CONSTANT_ALIGNMENT);
            copied[{piece.address, piece.length}] = copied_size;
            copies.emplace_back(&piece, copied_size);
            copied_size += piece.length;
        }
    }

    Gathered gathered;
    for (const FileId& file : order) {
        const auto [begin, end] = ranges[file];
        gathered.files.push_back({std::move(locator.opened[file]), begin, end - begin});
    }
    if (copied_size != 0) {
        Fd fd = memory_file("softnpu-weights");
        for (const auto& [piece, offset] : copies) {
            write_all(fd.get(), reinterpret_cast<const void*>(piece->address), piece->length, offset,
                      "constant '" + piece->name + "'");
        }
        seal(fd.get());
        gathered.files.push_back({std::move(fd), 0, copied_size});
    }

    // the weights space: every source on pages of its own
    std::vector<uint64_t> starts;
    uint64_t base = 0;
    for (const auto& file : gathered.files) {
        starts.push_back(base + file.offset % PAGE);
        base = round_up(starts.back() + file.length, PAGE);
    }
    for (size_t index = 0; index < pieces.size(); ++index) {
        const Piece& piece = pieces[index];
        if (const auto& location = locations[index]) {
            const size_t number =
                static_cast<size_t>(std::find(order.begin(), order.end(), location->file) - order.begin());
            gathered.offsets.push_back(starts[number] + location->offset - gathered.files[number].offset);
        } else {
            gathered.offsets.push_back(
                piece.length == 0 ? 0 : starts.back() + copied[{piece.address, piece.length}]);
        }
    }
    return gathered;
}

}  // namespace softnpu
