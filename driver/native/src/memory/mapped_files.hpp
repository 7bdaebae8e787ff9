// Files whose memory this process owns or receives: mapped ones, and those the device can use in place.
#pragma once

#include <fcntl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/fd.hpp"
#include "memory/pool.hpp"

namespace softnpu {

// ---------------------------------------------------------------- mapped files: /proc/self/maps

// Device and inode: the identity of a file.
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
// The area that contains an address, if any.
std::optional<Area> find_area(uint64_t address);
// Starts of the private mappings that have pages of their own, which the file does not have.
std::set<uint64_t> areas_with_private_pages();
// A descriptor of the very file that is mapped, for this access (O_RDONLY, O_RDWR); none if unobtainable.
Fd open_mapped_file(const Area& area, int access = O_RDONLY);

// ---------------------------------------------------------------- memory of other programs
//
// Files of shm_open and memfd_create without a size seal. The engine is guarded against truncation; a program
// that touches missing pages ends with SIGBUS, as with any such mapping.

// Whether it is a file in shared memory without huge pages.
bool is_shared_memory(int fd);
// Whether seals keep its size.
bool has_fixed_size(int fd);
// All of a file that others can truncate. INVALID_ARGUMENT for an empty or unwritable file.
std::shared_ptr<Block> import_foreign_file(MemoryPool& pool, int fd, std::string_view kind);

// ---------------------------------------------------------------- memory of this process
//
// Shared mappings of files in shared memory. Another process cannot reach private pages, and a page of a file
// on a disk may take any time.

// The memory as a block of this pool; the program keeps it mapped. INVALID_NULL_POINTER, UNSUPPORTED_SIZE for
// none, INVALID_ARGUMENT for parts of pages and for what the pool has, UNSUPPORTED_FEATURE for any other
// memory: it has to be copied. `for_reading`: a shared mapping of a file on a local disk will do, or one
// without write access, from a page on and of any size; the device cannot write it.
std::shared_ptr<Block> import_system_memory(MemoryPool& pool, void* address, size_t size, bool for_reading);

}  // namespace softnpu
