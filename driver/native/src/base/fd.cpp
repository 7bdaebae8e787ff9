#include "base/fd.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/error_info.hpp"

namespace softnpu {

int Fd::above_streams(int fd) {
    const int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int code = errno;
    ::close(fd);
    errno = code;
    return moved;
}

bool has_pages(int fd, size_t size) noexcept {
    constexpr size_t PAGE = 4096;
    struct stat status;
    if (fstat(fd, &status) != 0 || status.st_size < 0) return false;
    return (size - 1) / PAGE < (static_cast<size_t>(status.st_size) + PAGE - 1) / PAGE;
}

const uint8_t* map_pages(const char* name, int fd, size_t size) {
    if (!has_pages(fd, size)) throw unknown_error(name, "its file is shorter", format("%zu bytes", size));
    void* const mapped = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) throw out_of_host_memory(name, errno_text(errno), "room to map it");
    return static_cast<const uint8_t*>(mapped);
}

void read_all(const char* name, int fd, void* data, size_t size, uint64_t offset) {
    for (size_t done = 0; done < size;) {
        const ssize_t part =
            pread(fd, static_cast<char*>(data) + done, size - done, static_cast<off_t>(offset + done));
        if (part < 0 && errno == EINTR) continue;
        if (part <= 0) {
            throw unknown_error(name, part < 0 ? errno_text(errno) : "it ends too early", "a whole file");
        }
        done += static_cast<size_t>(part);
    }
}

}  // namespace softnpu
