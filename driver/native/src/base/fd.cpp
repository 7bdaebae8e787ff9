#include "base/fd.hpp"

#include <fcntl.h>

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
