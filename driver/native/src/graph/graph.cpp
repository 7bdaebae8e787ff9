#include "graph/graph.hpp"

#include <sys/mman.h>

#include <cerrno>

#include "interface/schema.hpp"

namespace softnpu {

using namespace schema;

DeviceGraph::~DeviceGraph() {
    // a destroyed context has taken its graphs with it; else the daemon learns of it with the next request
    if (const auto pool = pool_.lock())
        pool->defer(MapWriter(graph_destroy::TAG).put(graph_destroy::GRAPH, handle));
}

Graph::Graph(std::shared_ptr<Context> of, Answer created, uint32_t flags)
    : Object(of),
      context(std::move(of)),
      on_device(
          std::make_shared<DeviceGraph>(context->memory(), created.fields.integer(graph_created::GRAPH))),
      build_log(created.fields.string(graph_created::LOG)),
      meta(read_meta(created.fds.at(0).get(), created.fields.integer(graph_created::BLOB_LENGTH))),
      flags_(flags),
      origin_(created.fields.find(graph_created::ORIGIN) == nullptr
                  ? std::string(graph_origin::COMPILED)
                  : created.fields.string(graph_created::ORIGIN)),
      arguments_(meta.arguments.size()) {}

Graph::~Graph() {
    if (native_ != nullptr) munmap(const_cast<uint8_t*>(native_), native_size_);
}

void Graph::retire() {
    {
        std::lock_guard lock(mutex_);
        arguments_.clear();
    }
    context->memory()->flush();
}

void Graph::initialize() {
    // two threads may send it at once: the daemon initializes once
    if (initialized_) return;
    context->connection->request(
        MapWriter(schema::graph_initialize::TAG).put(schema::graph_initialize::GRAPH, on_device->handle),
        graph_initialized::TAG, 0, {}, Timeout::loader);
    initialized_ = true;
}

uint32_t Graph::property_flags() const {
    uint32_t flags = 0;
    if (origin_ == graph_origin::COMPILED) flags |= ZE_GRAPH_PROPERTIES_FLAG_COMPILED;
    if (origin_ == graph_origin::CACHE) flags |= ZE_GRAPH_PROPERTIES_FLAG_LOADED_FROM_CACHE;
    if (origin_ == graph_origin::NATIVE) flags |= ZE_GRAPH_PROPERTIES_FLAG_PRE_COMPILED;
    // the program's data were copied in any case: it need not keep them
    if (flags_ & ZE_GRAPH_FLAG_INPUT_GRAPH_PERSISTENT)
        flags |= ZE_GRAPH_PROPERTIES_FLAG_NO_STANDARD_ALLOCATION;
    if (meta.profiled) flags |= ZE_GRAPH_PROPERTIES_FLAG_PROFILING_ENABLED;
    return flags;
}

const ArgumentMeta& Graph::argument(uint32_t index) const {
    if (index >= meta.arguments.size()) {
        throw invalid_argument("graph '" + meta.name + "'", format("argument %u", index),
                               format("0 to %zu", meta.arguments.size() - 1));
    }
    return meta.arguments[index];
}

std::pair<const uint8_t*, size_t> Graph::native_binary() {
    {
        std::lock_guard lock(mutex_);
        if (native_ != nullptr) return {native_, native_size_};
    }
    const Answer answer =
        context->connection->request(MapWriter(graph_export::TAG).put(graph_export::GRAPH, on_device->handle),
                                     graph_exported::TAG, 1, {}, Timeout::compiler);
    const size_t size = answer.fields.integer(graph_exported::BLOB_LENGTH);
    const uint8_t* const mapped = map_pages("native binary", answer.fds[0].get(), size);
    std::lock_guard lock(mutex_);
    if (native_ != nullptr) {
        munmap(const_cast<uint8_t*>(mapped), size);  // another thread was quicker
    } else {
        native_ = mapped;
        native_size_ = size;
    }
    return {native_, native_size_};
}

void Graph::set_argument(uint32_t index, const void* const* pointer, const uint32_t* strides) {
    const bool is_input = argument(index).input;
    if (pointer == nullptr && strides == nullptr) {
        throw invalid_argument(name_of(index), "nothing to set", "memory or strides");
    }
    std::optional<Strides> chosen;
    if (strides != nullptr) chosen = checked_strides(index, strides);
    MemoryRef memory;
    if (context->connection->was_closed()) throw context->connection->lost_error();
    if (pointer != nullptr) {
        const MemoryPool& pool = *context->memory();
        memory = is_input ? pool.resolve(*pointer, ZE_RESULT_ERROR_INVALID_ARGUMENT)
                          : pool.resolve_target(*pointer, ZE_RESULT_ERROR_INVALID_ARGUMENT);
    }
    std::lock_guard lock(mutex_);
    if (index >= arguments_.size()) return;  // destroyed meanwhile
    auto& now = arguments_[index];
    if (!chosen && now && (flags_ & ZE_GRAPH_FLAG_OPTIMIZE_FOR_DYNAMIC_SHAPES)) chosen = now->strides;
    if (pointer == nullptr) {
        if (!now) {
            throw uninitialized(name_of(index), "strides only", "memory that was set before");
        }
        memory = now->memory;
    }
    check_room(index, memory.block->size - memory.offset, chosen);
    now = Argument{std::move(memory), chosen};
}

std::vector<Argument> Graph::arguments() const {
    std::lock_guard lock(mutex_);
    std::vector<Argument> all;
    for (uint32_t index = 0; index < arguments_.size(); ++index) {
        if (!arguments_[index]) {
            throw uninitialized(name_of(index), "not set", "memory", "call pfnSetArgumentValue first");
        }
        all.push_back(*arguments_[index]);
    }
    return all;
}

std::string Graph::name_of(uint32_t index) const {
    return "graph '" + meta.name + "', argument " + std::to_string(index) + " '" +
           meta.arguments[index].name + "'";
}

Strides Graph::checked_strides(uint32_t index, const uint32_t* strides) const {
    const ArgumentMeta& of = meta.arguments[index];
    if (!of.strides) {
        throw invalid_argument(name_of(index), "strides",
                               "an argument that the graph was compiled to take strides for",
                               "add NPU_ENABLE_STRIDES_FOR=\"" + of.name + "\" to the build flags");
    }
    Strides checked;
    const size_t rank = of.shape.size();
    for (size_t dim = 0; dim < rank; ++dim) {
        if (rank > command_buffer::STRIDE_DIMS || strides[dim] == 0) {
            throw invalid_argument(
                name_of(index),
                format("stride %zu of %u", dim, rank > command_buffer::STRIDE_DIMS ? 0 : strides[dim]),
                format("%zu strides of at least 1, innermost first", rank));
        }
        checked.steps[dim] = strides[dim];
    }
    return checked;
}

void Graph::check_room(uint32_t index, uint64_t room, const std::optional<Strides>& strides) const {
    const ArgumentMeta& of = meta.arguments[index];
    if (of.is_dynamic()) return;  // its size depends on the shape of each execution
    uint64_t needed = of.byte_size;
    if (strides) {
        uint64_t last = 0;
        const size_t rank = of.shape.size();
        for (size_t dim = 0; dim < rank; ++dim) {
            last += static_cast<uint64_t>(of.shape[rank - 1 - dim] - 1) * strides->steps[dim];
        }
        needed = (last + 1) * of.element_size();
    }
    if (room < needed) {
        throw invalid_argument(name_of(index), format("%lu bytes of memory", room),
                               format("%lu bytes at least", needed));
    }
}

}  // namespace softnpu
