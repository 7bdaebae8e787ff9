#include "memory/block.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/error_info.hpp"
#include "memory/pool.hpp"

namespace softnpu {

Mapping::Mapping(int fd, size_t size, bool sparse) : size_(size) {
    int code;
    do {
        code = sparse ? 0 : posix_fallocate(fd, 0, static_cast<off_t>(size));
    } while (code == EINTR);
    void* const mapped =
        code == 0 ? mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (mapped == MAP_FAILED) {
        throw out_of_device_memory(format("segment of %zu bytes", size), errno_text(code != 0 ? code : errno),
                                   "memory of the machine to back it");
    }
    address_ = static_cast<uint8_t*>(mapped);
    if (sparse) madvise(mapped, size, MADV_DONTDUMP);  // a core file would be searched for minutes
}

Mapping::~Mapping() { munmap(address_, size_); }

Block::~Block() {
    if (const auto pool = pool_.lock()) pool->collect({handle, segment, freed_by_daemon_});
}

}  // namespace softnpu
