// All memory of one context in this process: segments, each mapped once, the blocks in them, and the
// program's allocations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <vector>

#include "abi/ze.hpp"
#include "base/fd.hpp"
#include "session/connection.hpp"

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
class Object;

// The memory itself. Lives as long as anything refers to it: allocation, list, submission in flight.
class Block {
public:
    Block(std::weak_ptr<MemoryPool> pool, uint64_t handle, std::shared_ptr<Mapping> mapping, uint64_t segment,
          size_t offset, size_t size, bool freed_by_daemon, bool read_only = false)
        : handle(handle),
          segment(segment),
          offset(offset),
          size(size),
          read_only(read_only),
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
    const bool read_only;  // the device may not write it

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

// An allocation of zeMemAlloc...: a block and its properties.
struct Allocation {
    std::shared_ptr<Block> block;
    ze_memory_type_t type = ZE_MEMORY_TYPE_UNKNOWN;
    uint64_t id = 0;
};

// The memory of one context.
class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
public:
    MemoryPool(std::shared_ptr<Connection> connection, uint64_t context)
        : connection_(std::move(connection)), context_(context) {}

    // Memory of these sizes is sparse from now on: it is for arguments without a largest shape.
    void add_sparse_sizes(const std::set<size_t>& sizes);
    // Asks the daemon for memory: `host`, `device`, `shared` or `control`.
    std::shared_ptr<Block> allocate(std::string_view kind, size_t size, size_t alignment = 0,
                                    bool exportable = false);
    // Memory that another process has exported; the descriptor stays the caller's.
    std::shared_ptr<Block> import_segment(int fd, std::string_view kind);
    // Memory of this process: `offset` of a file, mapped by the program at `address`. Without an address it
    // is mapped here; `offset` is 0 then. `foreign`: the size of the file is not sealed; `read_only`: neither
    // is it, and the device only reads it. INVALID_ARGUMENT for what lies in an allocation.
    std::shared_ptr<Block> import_part(int fd, uint64_t offset, uint8_t* address, size_t size,
                                       std::string_view kind, bool foreign, bool read_only = false);
    // A descriptor of the block's segment. INVALID_ENUMERATION for memory that is not exportable.
    Fd export_segment(const Block& block);
    // A queue of so many slots: its handle, and its ring, which the daemon frees with it.
    std::pair<uint64_t, std::shared_ptr<Block>> create_queue(const MapWriter& request, size_t ring_size);

    // ---- allocations of the program, by address

    // `shared`: other programs may use it. `owner`: the context.
    void* publish(std::shared_ptr<Block> block, ze_memory_type_t type, bool shared, const Object& owner);
    // Whether an allocation starts there.
    bool has(const void* address) const;
    // Frees the allocation that starts there; INVALID_ARGUMENT for any other address.
    void free(const void* address);
    // The allocation that contains an address; throws `unknown` without one.
    Allocation find(const void* address, ze_result_t unknown) const;
    // As a reference; INVALID_NULL_POINTER for null.
    MemoryRef resolve(const void* address, ze_result_t unknown) const;
    // The same for memory that a command writes; INVALID_ARGUMENT if it is for reading only.
    MemoryRef resolve_target(const void* address, ze_result_t unknown) const;

    // Sends a request with the next `flush`; may be called under a lock.
    void defer(MapWriter request) noexcept;
    // Frees memory without references, and sends the deferred requests. Not under a lock of the driver.
    void flush();
    // The context is gone, and with it everything on the daemon's side.
    void close();

private:
    friend class Block;

    struct Freed {
        uint64_t handle;
        uint64_t segment;
        bool freed_by_daemon;
    };
    struct Segment {
        std::shared_ptr<Mapping> mapping;
        size_t blocks = 0;
        std::unique_ptr<SessionFd> exported;
    };

    // The next ones: called with `order_mutex_`.
    Answer ask(const MapWriter& request, std::string_view expected, size_t fds_expected = 0,
               const std::vector<int>& fds = {});
    void settle_interrupted();
    std::shared_ptr<Block> adopt(const Value& answer, std::vector<Fd>& fds, size_t fd_index, size_t size,
                                 bool freed_by_daemon, bool exportable, size_t alignment = 0,
                                 uint8_t* mapped = nullptr, bool read_only = false);
    void collect(Freed freed) noexcept;
    void flush_locked();
    void release_segment(uint64_t segment);
    void check_free(const uint8_t* address, size_t size) const;

    const std::shared_ptr<Connection> connection_;
    const uint64_t context_;

    // held across requests: answers with memory are adopted in their order
    std::mutex order_mutex_;
    uint32_t interrupted_ = 0;  // a request for memory whose thread was cancelled
    std::map<uint64_t, Segment> segments_;
    std::set<size_t> sparse_sizes_;
    bool closed_ = false;

    std::mutex garbage_mutex_;
    std::vector<Freed> garbage_;
    std::vector<MapWriter> deferred_;

    mutable std::shared_mutex address_mutex_;
    std::map<const uint8_t*, Allocation> allocations_;
    uint64_t last_id_ = 0;
};

}  // namespace softnpu
