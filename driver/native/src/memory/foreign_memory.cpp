#include "memory/foreign_memory.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "base/error_info.hpp"

namespace softnpu {

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

}  // namespace softnpu
