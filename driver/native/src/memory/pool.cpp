#include "memory/pool.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/error_info.hpp"
#include "interface/schema.hpp"
#include "session/check.hpp"

namespace softnpu {

using namespace schema;

// ---------------------------------------------------------------- segments and blocks

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
    if (check::on() && !borrowed_) check::unmapped(address_, size_);
    if (!borrowed_) munmap(address_, size_);
}

Block::~Block() {
    if (check::on()) check::memory_gone(data());
    if (const auto pool = pool_.lock()) pool->collect({handle, segment, freed_by_daemon_});
}

// ---------------------------------------------------------------- the pool

namespace {

constexpr size_t FREED_AT_ONCE = 1024;

MapWriter free_message(const std::vector<uint64_t>& handles) {
    MapWriter message(mem_free::TAG);
    message.put(mem_free::MEMORY, handles);
    return message;
}

}  // namespace

void MemoryPool::add_sparse_sizes(const std::set<size_t>& sizes) {
    std::lock_guard lock(order_mutex_);
    sparse_sizes_.insert(sizes.begin(), sizes.end());
}

std::shared_ptr<Block> MemoryPool::allocate(std::string_view kind, size_t size, size_t alignment,
                                            bool exportable) {
    flush();
    MapWriter request(mem_alloc::TAG);
    request.put(mem_alloc::CONTEXT, context_).put(mem_alloc::KIND, kind).put(mem_alloc::SIZE, size);
    if (alignment != 0) request.put(mem_alloc::ALIGNMENT, alignment);
    if (exportable) request.put_bool(mem_alloc::EXPORTABLE, true);
    std::lock_guard lock(order_mutex_);
    const bool sparse = !exportable && sparse_sizes_.count(size) != 0;
    if (sparse) request.put_bool(mem_alloc::SPARSE, true);
    Answer answer = ask(request, mem_allocated::TAG);
    auto block = adopt(answer.fields, answer.fds, 0, size, false, exportable, alignment);
    if (check::on() && kind != memory_kind::CONTROL && !sparse)
        check::fill_unwritten(block->data(), size, exportable);
    return block;
}

std::shared_ptr<Block> MemoryPool::import_segment(int fd, std::string_view kind) {
    flush();
    MapWriter request(mem_import::TAG);
    request.put(mem_import::CONTEXT, context_).put(mem_import::KIND, kind);
    std::lock_guard lock(order_mutex_);
    Answer answer = ask(request, mem_allocated::TAG, 1, {fd});
    return adopt(answer.fields, answer.fds, 0, answer.fields.integer(mem_allocated::SEGMENT_SIZE), false,
                 false);
}

std::shared_ptr<Block> MemoryPool::import_part(int fd, uint64_t offset, uint8_t* address, size_t size,
                                               std::string_view kind, bool foreign, bool read_only) {
    if (address != nullptr) check_free(address, size);
    // a file truncated meanwhile does not grow again
    int code = 0;
    do {
        if (read_only) break;
        code = fallocate(fd, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(size));
    } while (code != 0 && errno == EINTR);
    if (code != 0) {
        throw out_of_device_memory(format("%zu bytes of a memory file", size), errno_text(errno),
                                   "memory of the machine to back it");
    }
    flush();
    MapWriter request(mem_import_part::TAG);
    request.put(mem_import_part::CONTEXT, context_)
        .put(mem_import_part::KIND, kind)
        .put(mem_import_part::OFFSET, offset)
        .put(mem_import_part::SIZE, size);
    if (foreign) request.put_bool(mem_import_part::FOREIGN, true);
    if (read_only) request.put_bool(mem_import_part::READ_ONLY, true);
    std::lock_guard lock(order_mutex_);
    Answer answer = ask(request, mem_allocated::TAG, 1, {fd});
    return adopt(answer.fields, answer.fds, 0, size, false, false, 0, address, read_only);
}

void MemoryPool::check_free(const uint8_t* address, size_t size) const {
    std::shared_lock lock(address_mutex_);
    auto next = allocations_.upper_bound(address + size - 1);
    if (next == allocations_.begin()) return;
    const auto& [start, allocation] = *--next;
    if (address >= start + allocation.block->size) return;
    throw invalid_argument(format("%zu bytes at %p", size, static_cast<const void*>(address)),
                           format("part of memory %#lx", allocation.block->handle),
                           "memory that this context does not have");
}

Fd MemoryPool::export_segment(const Block& block) {
    std::lock_guard lock(order_mutex_);
    const auto segment = segments_.find(block.segment);
    if (segment == segments_.end() || segment->second.exported == nullptr) {
        throw invalid_enumeration(format("memory %#lx", block.handle),
                                  "allocated without the export descriptor", "an exportable allocation");
    }
    const SessionFd& exported = *segment->second.exported;
    if (!exported.is_ours()) {
        throw invalid_argument(format("memory %#lx", block.handle),
                               format("its descriptor (%d) was closed by this program", exported.get()),
                               "a descriptor of the memory", "close only what the program has opened itself");
    }
    Fd copy(fcntl(exported.get(), F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) {
        throw out_of_host_memory("exported memory", errno_text(errno), "a free descriptor");
    }
    return copy;
}

std::pair<uint64_t, std::shared_ptr<Block>> MemoryPool::create_queue(const MapWriter& request,
                                                                     size_t ring_size) {
    flush();
    std::lock_guard lock(order_mutex_);
    Answer answer = ask(request, queue_created::TAG);
    const uint64_t queue = answer.fields.integer(queue_created::QUEUE);
    const Value* const ring = answer.fields.find(queue_created::RING);
    try {
        if (ring == nullptr) throw connection_->lost_error();
        return {queue, adopt(*ring, answer.fds, 0, ring_size, true, false)};
    } catch (...) {
        connection_->request(MapWriter(queue_destroy::TAG).put(queue_destroy::QUEUE, queue), ok::TAG);
        throw;
    }
}

Answer MemoryPool::ask(const MapWriter& request, std::string_view expected, size_t fds_expected,
                       const std::vector<int>& fds) {
    settle_interrupted();
    return connection_->request(request, expected, fds_expected, fds, Timeout::supervisor, &interrupted_);
}

// Adopts and frees the memory received for a cancelled thread: a segment is described only once, and the next
// block may lie in it.
void MemoryPool::settle_interrupted() {
    if (interrupted_ == 0) return;
    Answer answer;
    try {
        answer = connection_->await_answer(interrupted_);
    } catch (const Error&) {
        interrupted_ = 0;  // refused, or everything is lost
        return;
    }
    interrupted_ = 0;
    const bool is_queue = answer.fields.string(TAG_FIELD) == queue_created::TAG;
    if (is_queue)
        defer(MapWriter(queue_destroy::TAG)
                  .put(queue_destroy::QUEUE, answer.fields.integer(queue_created::QUEUE)));
    const Value* const placed = is_queue ? answer.fields.find(queue_created::RING) : &answer.fields;
    if (placed != nullptr) adopt(*placed, answer.fds, 0, 0, is_queue, false);
}

std::shared_ptr<Block> MemoryPool::adopt(const Value& answer, std::vector<Fd>& fds, size_t fd_index,
                                         size_t size, bool freed_by_daemon, bool exportable, size_t alignment,
                                         uint8_t* mapped, bool read_only) {
    const uint64_t handle = answer.integer(mem_allocated::MEMORY);
    const uint64_t number = answer.integer(mem_allocated::SEGMENT);
    const size_t offset = answer.integer(mem_allocated::OFFSET);
    const size_t segment_size = answer.integer(mem_allocated::SEGMENT_SIZE);
    try {
        const auto outside = [&](size_t room) { return offset > room || size > room - offset; };
        const auto known = segments_.find(number);
        std::shared_ptr<Mapping> mapping = known == segments_.end() ? nullptr : known->second.mapping;
        const bool described = mapping != nullptr || (fd_index < fds.size() && !outside(segment_size));
        if (described && mapping == nullptr) {
            mapping = mapped != nullptr
                          ? std::make_shared<Mapping>(mapped, size)
                          : std::make_shared<Mapping>(fds[fd_index].get(), segment_size,
                                                      answer.flag(mem_allocated::SPARSE), alignment);
        }
        // the daemon may have described the segment before, or memory of the program be all of it
        if (!described || outside(mapping->size())) {
            throw device_lost(
                "memory from the daemon",
                format("%zu bytes at %zu of segment %lu, which has no descriptor or ends before", size,
                       offset, number),
                "a range inside a segment");
        }
        // the block comes last: it frees the memory itself
        Segment& segment = segments_[number];
        segment.mapping = mapping;
        if (exportable && fd_index < fds.size()) {
            segment.exported = std::make_unique<SessionFd>(std::move(fds[fd_index]));
        }
        auto block = std::make_shared<Block>(weak_from_this(), handle, mapping, number, offset, size,
                                             freed_by_daemon, read_only);
        segment.blocks++;
        return block;
    } catch (...) {
        const auto known = segments_.find(number);
        if (known != segments_.end() && known->second.blocks == 0) segments_.erase(known);
        if (!freed_by_daemon) connection_->request(free_message({handle}), ok::TAG);
        throw;
    }
}

void* MemoryPool::publish(std::shared_ptr<Block> block, ze_memory_type_t type, bool shared,
                          const Object& owner) {
    std::unique_lock lock(address_mutex_);
    uint8_t* const address = block->data();
    if (check::on()) check::memory_made(block->handle, address, block->size, shared, owner);
    allocations_[address] = Allocation{std::move(block), type, ++last_id_};
    return address;
}

bool MemoryPool::has(const void* address) const {
    std::shared_lock lock(address_mutex_);
    return allocations_.count(static_cast<const uint8_t*>(address)) != 0;
}

void MemoryPool::free(const void* address) {
    std::shared_ptr<Block> freed;
    {
        std::unique_lock lock(address_mutex_);
        const auto allocation = allocations_.find(static_cast<const uint8_t*>(address));
        if (allocation == allocations_.end()) {
            throw invalid_argument(
                format("address %p", address), "not the start of an allocation of this context",
                "what zeMemAllocHost, zeMemAllocDevice or zeMemAllocShared gave in this context");
        }
        freed = std::move(allocation->second.block);
        if (check::on()) check::memory_ended(freed->handle, freed->data());
        allocations_.erase(allocation);
    }
    freed.reset();
    flush();
}

Allocation MemoryPool::find(const void* address, ze_result_t unknown) const {
    if (address == nullptr) {
        throw invalid_null_pointer("memory", "null pointer", "an address");
    }
    const auto* const at = static_cast<const uint8_t*>(address);
    std::shared_lock lock(address_mutex_);
    auto next = allocations_.upper_bound(at);
    if (next != allocations_.begin()) {
        const auto& [start, allocation] = *--next;
        if (static_cast<size_t>(at - start) < allocation.block->size) return allocation;
    }
    throw ErrorOf{unknown}(format("address %p", address), "not in memory of this context",
                           "memory that was allocated in this context",
                           "copy the data into such memory first");
}

MemoryRef MemoryPool::resolve(const void* address, ze_result_t unknown) const {
    const Allocation allocation = find(address, unknown);
    return {allocation.block,
            static_cast<size_t>(static_cast<const uint8_t*>(address) - allocation.block->data())};
}

MemoryRef MemoryPool::resolve_target(const void* address, ze_result_t unknown) const {
    MemoryRef target = resolve(address, unknown);
    if (target.block->read_only) {
        throw invalid_argument(format("memory %#lx", target.block->handle), "imported for reading only",
                               "memory that the device may write");
    }
    return target;
}

void MemoryPool::collect(Freed freed) noexcept {
    try {
        std::lock_guard lock(garbage_mutex_);
        garbage_.push_back(freed);
    } catch (...) {
        // freed by the daemon with the context
    }
}

void MemoryPool::defer(MapWriter request) noexcept {
    try {
        std::lock_guard lock(garbage_mutex_);
        deferred_.push_back(std::move(request));
    } catch (...) {
        // as above
    }
}

void MemoryPool::flush() {
    {
        std::lock_guard lock(garbage_mutex_);
        if (garbage_.empty() && deferred_.empty()) return;
    }
    std::lock_guard lock(order_mutex_);
    flush_locked();
}

void MemoryPool::flush_locked() {
    std::vector<Freed> garbage;
    std::vector<MapWriter> deferred;
    {
        std::lock_guard lock(garbage_mutex_);
        garbage.swap(garbage_);
        deferred.swap(deferred_);
    }
    std::vector<uint64_t> handles;
    for (const Freed& freed : garbage) {
        release_segment(freed.segment);
        if (!freed.freed_by_daemon) handles.push_back(freed.handle);
    }
    if (closed_ || connection_->is_lost()) return;  // everything is gone with the context or the daemon
    for (const MapWriter& request : deferred) connection_->request(request, ok::TAG);
    for (size_t at = 0; at < handles.size(); at += FREED_AT_ONCE) {
        const size_t end = std::min(handles.size(), at + FREED_AT_ONCE);
        connection_->request(free_message({handles.begin() + static_cast<ptrdiff_t>(at),
                                           handles.begin() + static_cast<ptrdiff_t>(end)}),
                             ok::TAG);
    }
}

void MemoryPool::release_segment(uint64_t number) {
    const auto segment = segments_.find(number);
    if (segment != segments_.end() && --segment->second.blocks == 0) segments_.erase(segment);
}

void MemoryPool::close() {
    std::map<const uint8_t*, Allocation> allocations;
    {
        std::unique_lock lock(address_mutex_);
        allocations.swap(allocations_);
    }
    if (check::on())
        for (const auto& [address, allocation] : allocations)
            check::memory_ended(allocation.block->handle, address, true);
    std::lock_guard lock(order_mutex_);
    closed_ = true;
    segments_.clear();
}

}  // namespace softnpu
