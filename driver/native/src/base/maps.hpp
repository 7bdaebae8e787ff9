// What is mapped into this process: /proc/self/maps.
#pragma once

#include <fcntl.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/fd.hpp"

namespace softnpu {

// Device and inode: which file it is.
using FileId = std::tuple<unsigned, unsigned, uint64_t>;

struct Area {
    uint64_t start = 0;
    uint64_t end = 0;
    std::string access;
    uint64_t offset = 0;
    unsigned major = 0;
    unsigned minor = 0;
    uint64_t inode = 0;
    std::string path;

    FileId file() const { return {major, minor, inode}; }
};

// All areas, in the order of their addresses.
std::vector<Area> read_areas();
// The area that an address lies in, if there is one.
std::optional<Area> find_area(uint64_t address);
// Starts of the private mappings that have pages of their own, which the file does not have.
std::set<uint64_t> areas_with_private_pages();
// A descriptor of the very file that is mapped, for this access (O_RDONLY, O_RDWR); none if it cannot be had.
Fd open_mapped_file(const Area& area, int access = O_RDONLY);

}  // namespace softnpu
