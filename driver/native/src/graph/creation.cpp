#include "graph/creation.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/environment.hpp"
#include "base/output.hpp"
#include "graph/cache_options.hpp"
#include "graph/meta.hpp"
#include "graph/serialized.hpp"
#include "interface/schema.hpp"

namespace softnpu {

using namespace schema;

namespace {

constexpr int CHAIN_LIMIT = 20;
constexpr char ELF[] = {0x7f, 'E', 'L', 'F'};  // how the blobs of Intel's compiler begin

constexpr std::string_view CACHE_STATUS = "ZE DynamicCaching cache_status_t: ";

// Plain memory: a thread may call the driver while its thread-local objects are being destroyed.
thread_local char last_log[1 << 14];

// The line on the cache of a log; empty without one.
std::string cache_status(const std::string& log) {
    const size_t start = log.find(CACHE_STATUS);
    if (start == std::string::npos) return {};
    return log.substr(start, log.find('\n', start) - start) + "\n";
}

void check_input(const ze_graph_desc_t* desc) {
    require_nonnull(desc, "desc");
    require_nonnull(desc->pInput, "pInput");
    if (desc->inputSize == 0) throw invalid_size("graph", "inputSize is 0", "a model");
}

std::string_view build_flags(const ze_graph_desc_t& desc) {
    return desc.pBuildFlags == nullptr ? std::string_view() : std::string_view(desc.pBuildFlags);
}

std::optional<uint64_t> input_hash(const ze_graph_desc_t& desc) {
    const auto* link = static_cast<const ze_base_properties_t*>(desc.pNext);
    for (int count = 0; link != nullptr && count < CHAIN_LIMIT; ++count) {
        if (link->stype == ZE_STRUCTURE_TYPE_GRAPH_INPUT_HASH) {
            return reinterpret_cast<const ze_graph_input_hash_t*>(link)->hash;
        }
        link = static_cast<const ze_base_properties_t*>(link->pNext);
    }
    return std::nullopt;
}

Answer import_blob(const Context& context, const ze_graph_desc_t& desc, uint32_t flags) {
    const Fd blob = sealed_copy("softnpu-native", desc.pInput, desc.inputSize);
    MapWriter request(graph_import::TAG);
    request.put(graph_import::CONTEXT, context.handle()).put(graph_import::BLOB_LENGTH, desc.inputSize);
    if (flags != 0) request.put(graph_import::FLAGS, flags);
    try {
        return context.connection->request(request, graph_created::TAG, 1, {blob.get()}, Timeout::compiler);
    } catch (const Error& failure) {
        // OpenVINO hides the reason, and goes on without a graph
        if (desc.inputSize > sizeof ELF && std::memcmp(desc.pInput, ELF, sizeof ELF) == 0)
            log_once(failure.info().text());
        throw;
    }
}

Answer compile(const Context& context, const ze_graph_desc_t& desc, uint32_t flags) {
    const GraphSource source = parse_model(desc.pInput, desc.inputSize, context.device()->compiler());
    MapWriter request(graph_create::TAG);
    request.put(graph_create::CONTEXT, context.handle());
    source.describe(request);
    request.put(graph_create::BUILD_FLAGS, build_flags(desc));
    if (flags != 0) request.put(graph_create::FLAGS, flags);
    if (const auto hash = input_hash(desc)) request.put(graph_create::INPUT_HASH, *hash);
    if (const auto options = softnpu::cache_options()) {
        MapWriter cache = MapWriter::untagged();
        cache.put(schema::cache_options::DIRECTORY, options->directory)
            .put(schema::cache_options::LIMIT, options->limit);
        request.put(graph_create::CACHE, cache);
    }
    return context.connection->request(request, graph_created::TAG, 1, source.fds(), Timeout::compiler);
}

Answer create(const Context& context, const ze_graph_desc_t* desc, uint32_t flags) {
    check_input(desc);
    if (flags & ~ZE_GRAPH_FLAGS_ALL) {
        throw invalid_enumeration("graph", format("flags %#x", flags),
                                  format("bits of %#x", ZE_GRAPH_FLAGS_ALL));
    }
    switch (desc->format) {
        case ZE_GRAPH_FORMAT_NATIVE: return import_blob(context, *desc, flags);
        case ZE_GRAPH_FORMAT_NGRAPH_LITE: return compile(context, *desc, flags);
        default:
            throw invalid_argument("graph", format("format %u", desc->format),
                                   "1 (NATIVE) or 2 (NGRAPH_LITE)");
    }
}

// The records of the extension have room for 5: cut to that, a shape would be another one.
void check_ranks(const GraphMeta& meta) {
    for (const ArgumentMeta& argument : meta.arguments) {
        if (argument.shape.size() <= ZE_MAX_GRAPH_ARGUMENT_DIMENSIONS_SIZE) continue;
        throw unsupported_feature(
            "graph '" + meta.name + "', " + (argument.input ? "input '" : "output '") + argument.name + "'",
            format("%zu dimensions", argument.shape.size()),
            format("at most %zu", ZE_MAX_GRAPH_ARGUMENT_DIMENSIONS_SIZE), "reshape it inside the model");
    }
}

}  // namespace

std::shared_ptr<Graph> create_graph(const std::shared_ptr<Context>& context, const ze_graph_desc_t* desc,
                                    uint32_t flags) {
    copy_text(last_log, {});
    return with_build_failure([&] {
        auto graph = std::make_shared<Graph>(context, create(*context, desc, flags), flags);
        check_ranks(graph->meta);
        context->memory()->add_sparse_sizes(sparse_sizes(graph->meta));
        copy_text(last_log, cache_status(graph->build_log));
        return graph;
    });
}

std::shared_ptr<QueryNetwork> query_network(const std::shared_ptr<Context>& context,
                                            const ze_graph_desc_t* desc) {
    check_input(desc);
    if (desc->format != ZE_GRAPH_FORMAT_NGRAPH_LITE) {
        throw unsupported_enumeration("query network", format("format %u", desc->format), "2 (NGRAPH_LITE)");
    }
    const GraphSource source = parse_model(desc->pInput, desc->inputSize, context->device()->compiler());
    MapWriter request(graph_query::TAG);
    request.put(graph_query::CONTEXT, context->handle());
    source.describe(request);
    request.put(graph_query::BUILD_FLAGS, build_flags(*desc));
    const Answer answer =
        context->connection->request(request, graph_queried::TAG, 1, source.fds(), Timeout::compiler);
    std::string layers(answer.fields.integer(graph_queried::LENGTH), '\0');
    read_all("query network", answer.fds[0].get(), layers.data(), layers.size(), 0);
    return std::make_shared<QueryNetwork>(context, std::move(layers));
}

const char* last_build_log() noexcept { return last_log; }

void keep_build_failure(const ErrorInfo& info) { copy_text(last_log, info.line() + "\n"); }

}  // namespace softnpu
