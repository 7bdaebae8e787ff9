// Metric groups of a device, and their users: queries of commands, streamers of samples.
//
// Like the real driver's, they are absent unless ZET_ENABLE_METRICS enables them.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/used_indices.hpp"
#include "device/context.hpp"
#include "interface/schema.hpp"

namespace softnpu {

bool metrics_enabled();

// A group of one device, in a domain of its own. The context that has activated it holds it.
class MetricGroup : public Object {
public:
    static constexpr Kind KIND = Kind::metric_group;
    MetricGroup(std::shared_ptr<Device> device, const schema::MetricGroupInfo& group, uint32_t domain);

    const std::shared_ptr<Device> device;
    const schema::MetricGroupInfo& group;
    const uint32_t domain;
    std::vector<uint64_t> metric_handles;

    size_t report_size() const { return group.count * sizeof(uint64_t); }
    bool active() const;
    // INVALID_ARGUMENT unless it is of the device of this context, DEVICE_LOST if it is of another session.
    void check_of(const Context& context) const;
    // Whether it is active in another context than this one.
    bool active_beside(const Context* context) const;
    void activate(const std::shared_ptr<Context>& context);
    void deactivate(const Context* context);
    // What was counted between two snapshots.
    std::string report(const uint64_t* before, const uint64_t* after) const;

private:
    mutable std::mutex mutex_;
    std::weak_ptr<Context> holder_;
};

// One metric of a group.
class Metric : public Object {
public:
    static constexpr Kind KIND = Kind::metric;
    Metric(const std::shared_ptr<MetricGroup>& group, const schema::MetricInfo& metric)
        : Object(group), metric(metric) {}
    const schema::MetricInfo& metric;
};

// Room for `count` queries of one group.
class MetricQueryPool : public Object {
public:
    static constexpr Kind KIND = Kind::metric_query_pool;
    // UNINITIALIZED unless metrics are enabled, INVALID_SIZE for none, NOT_READY if the group is not active;
    // for a group of another device as `check_of`.
    MetricQueryPool(std::shared_ptr<Context> context, std::shared_ptr<MetricGroup> group, uint32_t count);

    const std::shared_ptr<Context> context;
    const std::shared_ptr<MetricGroup> group;

    // DEPENDENCY_UNAVAILABLE if the group is not active, INVALID_ARGUMENT out of range,
    // HANDLE_OBJECT_IN_USE if it is taken.
    MemoryRef acquire(uint32_t index);
    void release(uint32_t index) { used_.release(index); }
    // HANDLE_OBJECT_IN_USE while it has live queries.
    void check_unused() { used_.check_none(); }

private:
    UsedIndices used_;
    std::shared_ptr<Block> block_;
};

// What was counted between its begin and its end in a command list: two snapshots.
class MetricQuery : public Object {
public:
    static constexpr Kind KIND = Kind::metric_query;
    MetricQuery(std::shared_ptr<MetricQueryPool> pool, uint32_t index);

    void retire() override { pool_->release(index_); }
    void reset();
    const Context& context() const { return *pool_->context; }
    MemoryRef begin() const { return memory_; }
    MemoryRef end() const;
    // One report; zeros before the end has run.
    std::string data() const;

private:
    const std::shared_ptr<MetricQueryPool> pool_;
    const uint32_t index_;
    const MemoryRef memory_;
};

// Reports of a group at a steady period, which the daemon writes.
class MetricStreamer : public Object {
public:
    static constexpr Kind KIND = Kind::metric_streamer;
    MetricStreamer(std::shared_ptr<Context> context, std::shared_ptr<MetricGroup> group, uint64_t period_ns);
    ~MetricStreamer() override;

    const std::shared_ptr<MetricGroup> group;

    void retire() override;
    bool retired() const { return retired_; }
    // Reports that can be read now; older ones than the stream holds are lost.
    uint64_t available();
    // The oldest unread ones, up to a limit.
    std::string read(uint64_t most);

private:
    uint64_t available_locked();
    uint64_t samples() const;
    void copy_sample(uint64_t number, uint64_t* out) const;

    const std::shared_ptr<Context> context_;
    uint64_t stream_ = 0;
    const uint8_t* map_ = nullptr;
    std::mutex mutex_;
    uint64_t next_ = 1;  // its report needs the sample before
    std::atomic<bool> retired_{false};
};

}  // namespace softnpu
