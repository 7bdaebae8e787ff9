#include "graph/profiling.hpp"

#include <algorithm>
#include <cstring>

#include "base/output.hpp"
#include "interface/schema.hpp"

namespace softnpu {

using namespace schema;

namespace {

constexpr size_t LAYERS_PER_OPERATION = 2;
constexpr size_t LAYERS_MORE = 64;

size_t size_for(const Graph& graph) {
    const size_t layers = graph.meta.operations * LAYERS_PER_OPERATION + LAYERS_MORE;
    return (sizeof(ProfileHeader) + layers * sizeof(LayerRecord) + 63) / 64 * 64;
}

std::string_view text_in(const char* field, size_t size) { return {field, strnlen(field, size)}; }

template <class Info>
Info named(const LayerRecord& record) {
    Info info;
    std::memset(&info, 0, sizeof info);  // the gaps travel too
    copy_text(info.name, text_in(record.name, sizeof record.name));
    copy_text(info.layer_type, text_in(record.type, sizeof record.type));
    return info;
}

ze_profiling_layer_info layer_info(const ProfileHeader& header, const LayerRecord& record) {
    auto info = named<ze_profiling_layer_info>(record);
    info.status = record.status;
    info.start_time_ns = header.start + record.start;
    info.duration_ns = record.duration;
    info.layer_id = record.layer;
    info.dpu_ns = record.unit == task_type::DPU ? record.duration : 0;
    info.sw_ns = record.unit == task_type::SW ? record.duration : 0;
    info.dma_ns = record.unit == task_type::DMA ? record.duration : 0;
    return info;
}

ze_profiling_task_info task_info(const ProfileHeader& header, const LayerRecord& record, uint32_t number,
                                 uint64_t clock_mhz) {
    auto info = named<ze_profiling_task_info>(record);
    const uint64_t stalled = record.duration > record.cpu ? record.duration - record.cpu : 0;
    info.exec_type = record.unit;
    info.start_time_ns = header.start + record.start;
    info.duration_ns = record.duration;
    info.active_cycles = static_cast<uint32_t>(record.cpu * clock_mhz / 1000);
    info.stall_cycles = static_cast<uint32_t>(stalled * clock_mhz / 1000);
    info.task_id = number;
    info.parent_layer_id = record.layer;
    return info;
}

template <class T>
void append(std::string& out, const T& value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

ProfilingPool::ProfilingPool(std::shared_ptr<Graph> of, uint32_t count)
    : Object(of->context),
      graph(std::move(of)),
      query_size(size_for(*graph)),
      used_("profiling pool", "query", count) {
    if (!graph->meta.profiled) {
        throw not_available("graph '" + graph->meta.name + "'", "compiled without profiling",
                            "a graph created with the profiling flag");
    }
    if (count == 0) throw invalid_size("profiling pool", "0 queries", "at least 1");
    block_ = graph->context->memory()->allocate(memory_kind::CONTROL, query_size * count);
}

MemoryRef ProfilingPool::acquire(uint32_t index) {
    used_.acquire(index, ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE);
    return {block_, index * query_size};
}

ProfilingQuery::ProfilingQuery(std::shared_ptr<ProfilingPool> pool, uint32_t index)
    : Object(pool), pool_(std::move(pool)), index_(index), memory_(pool_->acquire(index)) {
    std::memset(memory_.data(), 0,
                sizeof(ProfileHeader::magic));  // what an earlier query has left
}

const MemoryRef& ProfilingQuery::memory(const Graph& graph) const {
    if (&graph != pool_->graph.get()) {
        throw invalid_argument("profiling query", "of graph '" + pool_->graph->meta.name + "'",
                               "a query of graph '" + graph.meta.name + "'");
    }
    return memory_;
}

std::string profile_data(const uint8_t* at, size_t size, uint32_t type, uint64_t clock_mhz) {
    if (type != ZE_GRAPH_PROFILING_LAYER_LEVEL && type != ZE_GRAPH_PROFILING_TASK_LEVEL &&
        type != ZE_GRAPH_PROFILING_RAW) {
        throw invalid_argument("profiling type", format("%u", type),
                               "LAYER_LEVEL (1), TASK_LEVEL (2) or RAW (4)");
    }
    ProfileHeader header{};
    std::memcpy(&header, at, std::min(size, sizeof header));
    if (profile::MAGIC != std::string_view(header.magic, sizeof header.magic) ||
        header.version != profile::VERSION || size < sizeof header) {
        throw not_available("profiling query", "no inference has ended with it",
                            "an inference that was executed with this query");
    }
    const size_t room = (size - sizeof header) / sizeof(LayerRecord);
    const auto count = static_cast<uint32_t>(std::min<size_t>(header.count, room));
    if (type == ZE_GRAPH_PROFILING_RAW) {
        return {reinterpret_cast<const char*>(at), sizeof header + count * sizeof(LayerRecord)};
    }
    std::string out;
    for (uint32_t index = 0; index < count; ++index) {
        LayerRecord record;
        std::memcpy(&record, at + sizeof header + index * sizeof record, sizeof record);
        if (type == ZE_GRAPH_PROFILING_LAYER_LEVEL) {
            append(out, layer_info(header, record));
        } else if (record.status == layer_status::EXECUTED) {
            append(out, task_info(header, record, index, clock_mhz));
        }
    }
    return out;
}

std::string ProfilingQuery::data(uint32_t type) const {
    const uint64_t clock = pool_->graph->context->device()->info.core_clock_mhz;
    return profile_data(memory_.data(), pool_->query_size, type, clock);
}

}  // namespace softnpu
