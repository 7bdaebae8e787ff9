#include "memory/system_memory.hpp"

#include <fcntl.h>

#include "base/maps.hpp"
#include "wire/schema.hpp"

namespace softnpu {

namespace {

constexpr int SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Error not_shared(const std::string& name, const std::string& found) {
    return unsupported_feature(
        name, found, "a shared mapping of a memory file with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL",
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
    for (const Area& area : read_areas()) {
        if (start < area.start || start >= area.end) continue;
        if (size > area.end - start) break;
        if (area.access.size() < 4 || area.access[3] != 's' || area.inode == 0)
            throw not_shared(name, "private pages, which no other process can reach");
        if (area.access.compare(0, 2, "rw") != 0) throw not_shared(name, "not readable and writable");
        const Fd fd = open_mapped_file(area, O_RDWR);
        if (!fd.valid()) throw not_shared(name, area.path + " cannot be opened");
        const int seals = fcntl(fd.get(), F_GET_SEALS);
        if (seals < 0 || (seals & SEALS) != SEALS)
            throw not_shared(name, "in " + area.path + ", which its owner could cut");
        return pool.import_part(fd.get(), area.offset + (start - area.start), static_cast<uint8_t*>(address),
                                size);
    }
    throw not_shared(name, "not in one mapping");
}

}  // namespace softnpu
