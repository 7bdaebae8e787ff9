#include "memory/system_memory.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/maps.hpp"
#include "interface/schema.hpp"
#include "memory/foreign_memory.hpp"

namespace softnpu {

namespace {

Error not_shared(const std::string& name, const std::string& found) {
    return unsupported_feature(
        name, found, "a shared mapping of a file of memfd_create or shm_open",
        "copy the data into memory of the device, or take the tensor from such a file");
}

}  // namespace

std::shared_ptr<Block> import_system_memory(MemoryPool& pool, void* address, size_t size) {
    if (address == nullptr) throw invalid_null_pointer("system memory", "null pointer", "an address");
    if (size == 0) throw unsupported_size("system memory", "0 bytes", "at least 1");
    const auto start = reinterpret_cast<uint64_t>(address);
    const std::string name = format("%zu bytes at %p", size, address);
    if (start % schema::blob::PAGE != 0 || size % schema::blob::PAGE != 0)
        throw invalid_argument(name, "parts of pages", "whole pages of 4096 bytes");
    const auto area = find_area(start);
    if (!area || size > area->end - start) throw not_shared(name, "not in one mapping");
    if (area->access[3] != 's' || area->inode == 0)
        throw not_shared(name, "private pages, which no other process can reach");
    if (area->access.compare(0, 2, "rw") != 0) throw not_shared(name, "not readable and writable");
    const Fd fd = open_mapped_file(*area, O_RDWR);
    if (!fd.valid()) throw not_shared(name, area->path + " cannot be opened");
    const uint64_t offset = area->offset + (start - area->start);
    auto* const pages = static_cast<uint8_t*>(address);
    if (has_fixed_size(fd.get()))
        return pool.import_part(fd.get(), offset, pages, size, schema::memory_kind::HOST, false);
    if (!is_shared_memory(fd.get()))
        throw not_shared(name, "in " + area->path + ", which is no shared memory");
    struct stat status;
    if (fstat(fd.get(), &status) != 0 || static_cast<uint64_t>(status.st_size) < offset + size)
        throw not_shared(name, "behind the end of " + area->path);
    return pool.import_part(fd.get(), offset, pages, size, schema::memory_kind::HOST, true);
}

}  // namespace softnpu
