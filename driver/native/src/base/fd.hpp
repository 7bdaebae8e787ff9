// File descriptors: closed with their owner, read as a whole.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace softnpu {

class Fd {
public:
    Fd() = default;
    // From 3 on: whoever prints in a program without standard streams would write into a lower one.
    explicit Fd(int fd) : fd_(fd > STDERR_FILENO || fd < 0 ? fd : above_streams(fd)) {}
    Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd& operator=(Fd&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Fd() { reset(); }

    int get() const { return fd_; }
    bool valid() const { return fd_ >= 0; }
    int release() { return std::exchange(fd_, -1); }
    void reset() {
        if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    }

private:
    static int above_streams(int fd);

    int fd_ = -1;
};

// Whether the file has all pages of a mapping of this size: to touch one that it has not is SIGBUS.
bool has_pages(int fd, size_t size) noexcept;
// Maps a file for reading; UNKNOWN with its name if it has fewer pages, OUT_OF_HOST_MEMORY.
const uint8_t* map_pages(const char* name, int fd, size_t size);
// Reads `size` bytes; UNKNOWN with the name of the file if it ends before.
void read_all(const char* name, int fd, void* data, size_t size, uint64_t offset);

}  // namespace softnpu
