// The profiling extension: pools and queries of one graph, filled by its inferences.
#pragma once

#include <memory>
#include <string>

#include "base/used_indices.hpp"
#include "graph/graph.hpp"

namespace softnpu {

// Room for `count` queries on one graph that was compiled to be profiled.
class ProfilingPool : public Object {
public:
    static constexpr Kind KIND = Kind::profiling_pool;
    // NOT_AVAILABLE for a graph without profiling, INVALID_SIZE for none.
    ProfilingPool(std::shared_ptr<Graph> graph, uint32_t count);

    const std::shared_ptr<Graph> graph;
    const size_t query_size;

    // INVALID_ARGUMENT out of range, HANDLE_OBJECT_IN_USE if it is taken.
    MemoryRef acquire(uint32_t index);
    void release(uint32_t index) { used_.release(index); }
    // HANDLE_OBJECT_IN_USE while it has live queries.
    void check_unused() { used_.check_none(); }

private:
    UsedIndices used_;
    std::shared_ptr<Block> block_;
};

// A raw profile of `size` bytes as records of this type, as the C structures lie in memory. NOT_AVAILABLE if
// it is none.
std::string profile_data(const uint8_t* raw, size_t size, uint32_t type, uint64_t clock_mhz);

// The profile of the last inference that was executed with this query.
class ProfilingQuery : public Object {
public:
    static constexpr Kind KIND = Kind::profiling_query;
    ProfilingQuery(std::shared_ptr<ProfilingPool> pool, uint32_t index);

    void retire() override { pool_->release(index_); }
    // Where the engine writes. INVALID_ARGUMENT for another graph's query.
    const MemoryRef& memory(const Graph& graph) const;
    // Records as the C structures lie in memory, or the raw profile. NOT_AVAILABLE before an inference ended.
    std::string data(uint32_t type) const;

private:
    const std::shared_ptr<ProfilingPool> pool_;
    const uint32_t index_;
    const MemoryRef memory_;
};

}  // namespace softnpu
