// Memory of the device in this process: segments that are mapped once, and the blocks that lie in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace softnpu {

// A mapped segment, unmapped with the last block that lies in it.
class Mapping {
public:
    // Reserves the pages first, unless it is sparse: without them a write may end in SIGBUS. Throws
    // OUT_OF_DEVICE_MEMORY. The address is a multiple of `alignment` as far as there is room for that, of the
    // page else.
    Mapping(int fd, size_t size, bool sparse, size_t alignment);
    // Pages that the program has mapped, and keeps mapped.
    Mapping(uint8_t* address, size_t size) : address_(address), size_(size), borrowed_(true) {}
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    uint8_t* address() const { return address_; }
    size_t size() const { return size_; }

private:
    uint8_t* address_;
    size_t size_;
    const bool borrowed_ = false;
};

class MemoryPool;

// The memory itself. Lives as long as anything refers to it: allocation, list, submission in flight.
class Block {
public:
    Block(std::weak_ptr<MemoryPool> pool, uint64_t handle, std::shared_ptr<Mapping> mapping, uint64_t segment,
          size_t offset, size_t size, bool freed_by_daemon)
        : handle(handle),
          segment(segment),
          offset(offset),
          size(size),
          mapping_(std::move(mapping)),
          pool_(std::move(pool)),
          freed_by_daemon_(freed_by_daemon) {}
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    const uint64_t handle;
    const uint64_t segment;
    const size_t offset;
    const size_t size;

    uint8_t* data() const { return mapping_->address() + offset; }
    // The address on the device: segments lie far apart.
    uint64_t device_address() const { return (segment << 40) + 0x80000000ull + offset; }

private:
    std::shared_ptr<Mapping> mapping_;
    std::weak_ptr<MemoryPool> pool_;
    const bool freed_by_daemon_;  // a ring: it ends with its queue
};

// An offset in a block, which it keeps alive.
struct MemoryRef {
    std::shared_ptr<Block> block;
    size_t offset = 0;

    uint8_t* data() const { return block->data() + offset; }
};

}  // namespace softnpu
