#include "device/context.hpp"

#include <unistd.h>

#include <cstring>

#include "interface/schema.hpp"
#include "memory/records.hpp"
#include "session/runtime.hpp"

namespace softnpu {

using namespace schema;

namespace {

constexpr size_t FENCES_AT_ONCE = 64;

}  // namespace

std::shared_ptr<Context> Context::create(const std::shared_ptr<Driver>& driver) {
    if (driver->devices.empty()) {
        throw uninitialized("driver", "the daemon has no device", "a device");
    }
    auto context = std::make_shared<Context>(driver);
    // with one device there is nothing to choose
    if (driver->devices.size() == 1) context->make(driver->devices[0]);
    return context;
}

std::shared_ptr<Context> Context::create_after(std::shared_ptr<Context> lost,
                                               const std::shared_ptr<Driver>& driver) {
    auto context = create(driver);
    {
        std::lock_guard lock(lost->idle_mutex_);
        context->idle_ = lost->idle_;
    }
    if (const OnDevice* const made = lost->made_.load(std::memory_order_acquire)) {
        for (const auto& device : driver->devices)
            if (device->info.index == made->device->info.index) context->make(device);
    }
    context->predecessor_ = std::move(lost);
    return context;
}

Context::Context(std::shared_ptr<Driver> of)
    : Object(of), driver(std::move(of)), connection(driver->connection) {}

const Context::OnDevice& Context::make(const std::shared_ptr<Device>& device) const {
    std::lock_guard lock(on_device_mutex_);
    if (on_device_ != nullptr) return *on_device_;
    if (retired_) throw invalid_argument("context", "destroyed meanwhile", "a live one");
    MapWriter request(context_create::TAG);
    request.put(context_create::DEVICE, device->info.index);
    Answer answer = connection->request(request, context_created::TAG, 1);
    const uint64_t number = answer.fields.integer(context_created::CONTEXT);
    try {
        on_device_.reset(new OnDevice{device, number, std::make_shared<MemoryPool>(connection, number),
                                      SessionFd(std::move(answer.fds[0]))});
    } catch (...) {
        connection->request(MapWriter(context_destroy::TAG).put(context_destroy::CONTEXT, number), ok::TAG);
        throw;
    }
    made_.store(on_device_.get(), std::memory_order_release);
    std::lock_guard idle_lock(idle_mutex_);
    if (idle_.chosen) send_idle(*on_device_);
    return *on_device_;
}

void Context::retire() {
    if (predecessor_ != nullptr) {
        runtime().handles.remove_owned_by(predecessor_);
        predecessor_->retire();
    }
    {
        std::lock_guard lock(on_device_mutex_);
        retired_ = true;
        if (on_device_ == nullptr) return;
    }
    {
        std::lock_guard lock(fences_mutex_);
        free_fences_.clear();
    }
    memory()->close();
    if (!connection->is_lost())
        connection->request(MapWriter(context_destroy::TAG).put(context_destroy::CONTEXT, handle()), ok::TAG,
                            0, {}, Timeout::end);
    std::lock_guard lock(fences_mutex_);
    kept_.clear();
}

uint64_t Context::device_handle() const {
    size_t index = 0;
    while (driver->devices[index] != device()) ++index;
    return driver->device_handles[index];
}

void Context::check_device(const Device& other) const {
    for (const auto& known : driver->devices) {
        if (known.get() != &other) continue;
        // the first device that a program names is the context's
        if (made_.load(std::memory_order_acquire) == nullptr) make(known);
    }
    if (&other == device().get()) return;
    check_session(other.connection);
    throw invalid_argument(
        "context", format("of device %u, used with device %u", device()->info.index, other.info.index),
        "the device that the context was used with first (without naming one: the first one)",
        "make a context for each device, and its queue before host memory");
}

void Context::check_session(const Context& other) const { check_session(other.connection); }

void Context::check_session(const std::shared_ptr<Connection>& other) const {
    if (other == connection) return;
    const std::shared_ptr<Connection>& lost = other->is_lost() ? other : connection;
    throw lost->lost_error();
}

void Context::free(const void* address) {
    for (const Context* context = predecessor_.get(); context != nullptr;
         context = context->predecessor_.get()) {
        const OnDevice* const made = context->made_.load(std::memory_order_acquire);
        if (made != nullptr && made->memory->has(address)) return made->memory->free(address);
    }
    memory()->free(address);
}

void Context::ring_doorbell() const {
    const SessionFd& doorbell = on_device().doorbell;
    if (!doorbell.is_ours()) connection->descriptor_is_gone("doorbell", doorbell.get());
    const uint64_t one = 1;
    // it does not block; full means that it is rung already
    [[maybe_unused]] const ssize_t written = ::write(doorbell.get(), &one, sizeof one);
}

void Context::release_memory() {
    {
        std::lock_guard lock(fences_mutex_);
        free_fences_.clear();
    }
    memory()->flush();
    connection->request(MapWriter(context_release::TAG).put(context_release::CONTEXT, handle()), ok::TAG);
}

void Context::set_idle_pruning(bool enabled) {
    choose_idle([&](Idle& idle) { idle.pruned = enabled; });
}

void Context::set_idle_timeout(uint64_t milliseconds) {
    choose_idle([&](Idle& idle) { idle.timeout_ms = milliseconds; });
}

// The daemon learns it now, or from `make` if the context is on no device yet.
void Context::choose_idle(const std::function<void(Idle&)>& change) {
    std::lock_guard lock(idle_mutex_);
    change(idle_);
    idle_.chosen = true;
    if (const OnDevice* const made = made_.load(std::memory_order_acquire)) send_idle(*made);
}

void Context::send_idle(const OnDevice& made) const {
    MapWriter request(context_idle::TAG);
    request.put(context_idle::CONTEXT, made.handle);
    if (idle_.pruned) request.put(context_idle::AFTER_MS, idle_.timeout_ms);
    connection->request(request, ok::TAG);
}

std::pair<uint64_t, uint64_t> Context::query_memory() const {
    memory()->flush();
    const Answer answer = connection->request(
        MapWriter(context_memory::TAG).put(context_memory::CONTEXT, handle()), context_memory_answer::TAG);
    return {answer.fields.integer(context_memory_answer::TOTAL),
            answer.fields.integer(context_memory_answer::ALLOCATED) +
                answer.fields.integer(context_memory_answer::GRAPHS)};
}

MemoryRef Context::acquire_fence() {
    {
        std::lock_guard lock(fences_mutex_);
        if (!free_fences_.empty()) {
            MemoryRef memory = std::move(free_fences_.back());
            free_fences_.pop_back();
            return memory;
        }
    }
    const auto block = memory()->allocate(memory_kind::CONTROL, FENCES_AT_ONCE * RECORD_SIZE);
    // old content must not look like a ticket
    std::memset(block->data(), 0, FENCES_AT_ONCE * RECORD_SIZE);
    std::lock_guard lock(fences_mutex_);
    for (size_t index = 1; index < FENCES_AT_ONCE; ++index)
        free_fences_.push_back({block, index * RECORD_SIZE});
    return {block, 0};
}

void Context::release_fence(MemoryRef memory) {
    FenceRecord(memory.data()).arm(0);
    std::lock_guard lock(fences_mutex_);
    if (!retired_) free_fences_.push_back(std::move(memory));
}

void Context::keep(std::shared_ptr<const void> kept) {
    std::lock_guard lock(fences_mutex_);
    kept_.push_back(std::move(kept));
}

}  // namespace softnpu
