#include "graph/creation.hpp"

#include <unistd.h>

#include <cerrno>

#include "base/guard.hpp"
#include "graph/cache_options.hpp"
#include "graph/serialized.hpp"

namespace softnpu {

namespace {

constexpr int CHAIN_LIMIT = 20;

thread_local std::string last_failure;

void check_input(const ze_graph_desc_t* desc) {
    given(desc, "desc");
    given(desc->pInput, "pInput");
    if (desc->inputSize == 0) throw error(ZE_RESULT_ERROR_INVALID_SIZE, "graph", "inputSize is 0", "a model");
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
    MapWriter request("graph_import");
    request.put("context", context.handle()).put("blob_length", desc.inputSize);
    if (flags != 0) request.put("flags", flags);
    return context.connection->request(request, "graph_created", 1, {blob.get()}, Patience::compiler);
}

Answer compile(const Context& context, const ze_graph_desc_t& desc, uint32_t flags) {
    const GraphSource source = parse_model(desc.pInput, desc.inputSize, context.device()->compiler());
    MapWriter request("graph_create");
    request.put("context", context.handle());
    source.describe(request);
    request.put("build_flags", build_flags(desc));
    if (flags != 0) request.put("flags", flags);
    if (const auto hash = input_hash(desc)) request.put("input_hash", *hash);
    if (const auto options = cache_options()) {
        MapWriter cache = MapWriter::untagged();
        cache.put("directory", std::string_view(options->directory)).put("limit", options->limit);
        request.put("cache", cache);
    }
    return context.connection->request(request, "graph_created", 1, source.fds(), Patience::compiler);
}

Answer create(const Context& context, const ze_graph_desc_t* desc, uint32_t flags) {
    check_input(desc);
    if (flags & ~ZE_GRAPH_FLAGS_ALL) {
        throw error(ZE_RESULT_ERROR_INVALID_ENUMERATION, "graph", format("flags %#x", flags),
                    format("bits of %#x", ZE_GRAPH_FLAGS_ALL));
    }
    switch (desc->format) {
        case ZE_GRAPH_FORMAT_NATIVE: return import_blob(context, *desc, flags);
        case ZE_GRAPH_FORMAT_NGRAPH_LITE: return compile(context, *desc, flags);
        default:
            throw error(ZE_RESULT_ERROR_INVALID_ARGUMENT, "graph", format("format %u", desc->format),
                        "1 (NATIVE) or 2 (NGRAPH_LITE)");
    }
}

// The records of the extension have room for 5: cut to that, a shape would be another one.
void check_ranks(const GraphMeta& meta) {
    for (const ArgumentMeta& argument : meta.arguments) {
        if (argument.shape.size() <= ZE_MAX_GRAPH_ARGUMENT_DIMENSIONS_SIZE) continue;
        throw error(
            ZE_RESULT_ERROR_UNSUPPORTED_FEATURE,
            "graph '" + meta.name + "', " + (argument.input ? "input '" : "output '") + argument.name + "'",
            format("%zu dimensions", argument.shape.size()),
            format("at most %zu", ZE_MAX_GRAPH_ARGUMENT_DIMENSIONS_SIZE), "reshape it inside the model");
    }
}

}  // namespace

std::shared_ptr<Graph> create_graph(const std::shared_ptr<Context>& context, const ze_graph_desc_t* desc,
                                    uint32_t flags) {
    return with_build_failure([&] {
        auto graph = std::make_shared<Graph>(context, create(*context, desc, flags), flags);
        check_ranks(graph->meta);
        return graph;
    });
}

std::shared_ptr<QueryNetwork> query_network(const std::shared_ptr<Context>& context,
                                            const ze_graph_desc_t* desc) {
    check_input(desc);
    if (desc->format != ZE_GRAPH_FORMAT_NGRAPH_LITE) {
        throw error(ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION, "query network",
                    format("format %u", desc->format), "2 (NGRAPH_LITE)");
    }
    const GraphSource source = parse_model(desc->pInput, desc->inputSize, context->device()->compiler());
    MapWriter request("graph_query");
    request.put("context", context->handle());
    source.describe(request);
    request.put("build_flags", build_flags(*desc));
    const Answer told =
        context->connection->request(request, "graph_queried", 1, source.fds(), Patience::compiler);
    std::string layers(told.fields.integer("length"), '\0');
    for (size_t done = 0; done < layers.size();) {
        const ssize_t size =
            pread(told.fds[0].get(), layers.data() + done, layers.size() - done, static_cast<off_t>(done));
        if (size < 0 && errno == EINTR) continue;
        if (size <= 0)
            throw error(ZE_RESULT_ERROR_UNKNOWN, "query network", "its text ends too early", "all layers");
        done += static_cast<size_t>(size);
    }
    return std::make_shared<QueryNetwork>(context, std::move(layers));
}

const std::string& last_build_failure() { return last_failure; }

void keep_build_failure(const ErrorInfo& fault) { last_failure = fault.name() + ": " + fault.text() + "\n"; }

}  // namespace softnpu
