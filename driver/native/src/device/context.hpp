// `ze_context_handle_t`: owns memory, queues, command lists, graphs and events on one device.
//
// Level Zero creates a context without a device, the daemon on a device: the first call that names a device
// decides. A call that names none means the first device.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fd.hpp"
#include "base/handles.hpp"
#include "memory/pool.hpp"
#include "session/driver.hpp"

namespace softnpu {

class Context : public Object {
public:
    static constexpr Kind KIND = Kind::context;
    static std::shared_ptr<Context> create(const std::shared_ptr<Driver>& driver);
    // One in another session, in the place of one whose session is lost. It keeps that, with its memory.
    static std::shared_ptr<Context> create_after(std::shared_ptr<Context> lost,
                                                 const std::shared_ptr<Driver>& driver);
    explicit Context(std::shared_ptr<Driver> driver);

    const std::shared_ptr<Driver> driver;
    const std::shared_ptr<Connection> connection;

    const std::shared_ptr<Device>& device() const { return on_device().device; }
    uint64_t device_handle() const;
    uint64_t handle() const { return on_device().handle; }
    const std::shared_ptr<MemoryPool>& memory() const { return on_device().memory; }

    void retire() override;
    bool retired() const { return retired_; }

    // Decides the device. INVALID_ARGUMENT for another one than that of this context, DEVICE_LOST for one of
    // another session.
    void check_device(const Device& other) const;
    // Throws DEVICE_LOST for an object of another session: its numbers would mean other things in this one.
    void check_session(const Context& other) const;
    void check_session(const std::shared_ptr<Connection>& other) const;
    void ring_doorbell() const;
    // Frees an allocation of this context or of one in whose place it is.
    void free(const void* address);
    // Gives back memory that is not in use now; what is needed again comes back by itself.
    void release_memory();
    // When that happens by itself: after so many milliseconds without work, if enabled.
    void set_idle_pruning(bool enabled);
    void set_idle_timeout(uint64_t milliseconds);
    // Total bytes of device memory, and bytes of this context: memory and graphs.
    std::pair<uint64_t, uint64_t> query_memory() const;

    // 64 bytes for a fence; many share one allocation.
    MemoryRef acquire_fence();
    // What still runs no longer signals it.
    void release_fence(MemoryRef memory);
    // A number for one submission with a fence, never used again in this context.
    uint64_t next_ticket() { return ++last_ticket_; }
    // Keeps something alive as long as the context.
    void keep(std::shared_ptr<const void> kept);

private:
    // What the context is in the daemon.
    struct OnDevice {
        std::shared_ptr<Device> device;
        uint64_t handle;
        std::shared_ptr<MemoryPool> memory;
        SessionFd doorbell;
    };
    const OnDevice& on_device() const {
        const OnDevice* const made = made_.load(std::memory_order_acquire);
        return made != nullptr ? *made : make(driver->devices[0]);
    }
    // What the program has chosen of idle memory.
    struct Idle {
        bool chosen = false;
        bool pruned = true;
        uint64_t timeout_ms = 30'000;
    };
    void choose_idle(const std::function<void(Idle&)>& change);
    // Called with `idle_mutex_`.
    void send_idle(const OnDevice& made) const;
    // Makes it, unless another thread was faster.
    const OnDevice& make(const std::shared_ptr<Device>& device) const;

    mutable std::mutex on_device_mutex_;
    mutable std::unique_ptr<const OnDevice> on_device_;
    mutable std::atomic<const OnDevice*> made_{nullptr};
    mutable std::mutex idle_mutex_;
    Idle idle_;
    std::shared_ptr<Context> predecessor_;  // of a lost session; this context is in its place
    std::atomic<bool> retired_{false};
    std::atomic<uint64_t> last_ticket_{0};
    std::mutex fences_mutex_;
    std::vector<MemoryRef> free_fences_;
    std::vector<std::shared_ptr<const void>> kept_;
};

}  // namespace softnpu
