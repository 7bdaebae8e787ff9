// `ze_graph_handle_t`: a compiled model, its arguments, and its blob.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "abi/extensions.hpp"
#include "commands/encoding.hpp"
#include "device/context.hpp"
#include "graph/meta.hpp"

namespace softnpu {

// The graph on the device. Lives as long as its handle, or a list or submission that executes it.
class DeviceGraph {
public:
    DeviceGraph(std::weak_ptr<MemoryPool> pool, uint64_t handle) : handle(handle), pool_(std::move(pool)) {}
    ~DeviceGraph();
    const uint64_t handle;

private:
    std::weak_ptr<MemoryPool> pool_;
};

class Graph : public Object {
public:
    static constexpr Kind KIND = Kind::graph;
    // From the answer `graph_created`.
    Graph(std::shared_ptr<Context> context, Answer created, uint32_t flags);
    ~Graph() override;

    const std::shared_ptr<Context> context;
    const std::shared_ptr<DeviceGraph> on_device;
    const std::string build_log;
    const GraphMeta meta;

    void retire() override;
    Noted noted() const override { return {on_device->handle, 0, 0, context.get()}; }
    void initialize();

    uint32_t property_flags() const;
    // INVALID_ARGUMENT for an unknown index.
    const ArgumentMeta& argument(uint32_t index) const;

    // A blob with all weights inside, made at the first call; valid as long as the graph lives.
    std::pair<const uint8_t*, size_t> native_binary();

    // Memory, strides, or both: see pfnSetArgumentValue2.
    void set_argument(uint32_t index, const void* const* pointer, const uint32_t* strides);
    // The current arguments; UNINITIALIZED, by name, for a missing one.
    std::vector<Argument> arguments() const;

private:
    std::string name_of(uint32_t index) const;
    Strides checked_strides(uint32_t index, const uint32_t* strides) const;
    void check_room(uint32_t index, uint64_t room, const std::optional<Strides>& strides) const;

    const uint32_t flags_;
    const std::string origin_;
    mutable std::mutex mutex_;
    std::vector<std::optional<Argument>> arguments_;
    std::atomic<bool> initialized_{false};
    const uint8_t* native_ = nullptr;
    size_t native_size_ = 0;
};

}  // namespace softnpu
