#include "memory/block.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/error_info.hpp"
#include "interface/schema.hpp"
#include "memory/pool.hpp"

namespace softnpu {

namespace {

constexpr int ACCESS = PROT_READ | PROT_WRITE;
constexpr size_t MOST_ALIGNED = size_t{1} << 46;  // half of the addresses of a process

// Maps the file at a multiple of `alignment`, inside of a range that is reserved first; MAP_FAILED without
// room.
void* map_aligned(int fd, size_t size, size_t alignment) {
    if (alignment > MOST_ALIGNED) return MAP_FAILED;
    const size_t length = size + alignment;
    void* const room = mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return room;
    const auto start = reinterpret_cast<uintptr_t>(room);
    const uintptr_t address = (start + alignment - 1) & ~(alignment - 1);
    void* const mapped = mmap(reinterpret_cast<void*>(address), size, ACCESS, MAP_SHARED | MAP_FIXED, fd, 0);
    if (mapped == MAP_FAILED) {
        munmap(room, length);
        return mapped;
    }
    // segments are whole pages
    if (address != start) munmap(room, address - start);
    munmap(static_cast<uint8_t*>(mapped) + size, start + length - address - size);
    return mapped;
}

void* map_shared(int fd, size_t size, size_t alignment) {
    void* const aligned = alignment > schema::blob::PAGE ? map_aligned(fd, size, alignment) : MAP_FAILED;
    return aligned != MAP_FAILED ? aligned : mmap(nullptr, size, ACCESS, MAP_SHARED, fd, 0);
}

}  // namespace

Mapping::Mapping(int fd, size_t size, bool sparse, size_t alignment) : size_(size) {
    int code;
    do {
        code = sparse ? (has_pages(fd, size) ? 0 : ENOSPC) : posix_fallocate(fd, 0, static_cast<off_t>(size));
    } while (code == EINTR);
    void* const mapped = code == 0 ? map_shared(fd, size, alignment) : MAP_FAILED;
    if (mapped == MAP_FAILED) {
        throw out_of_device_memory(format("segment of %zu bytes", size), errno_text(code != 0 ? code : errno),
                                   "memory of the machine to back it");
    }
    address_ = static_cast<uint8_t*>(mapped);
    if (sparse) madvise(mapped, size, MADV_DONTDUMP);  // a core file would be searched for minutes
}

Mapping::~Mapping() {
    if (!borrowed_) munmap(address_, size_);
}

Block::~Block() {
    if (const auto pool = pool_.lock()) pool->collect({handle, segment, freed_by_daemon_});
}

}  // namespace softnpu
