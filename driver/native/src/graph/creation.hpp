// Creation of graphs: from a model, or from a native blob.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "graph/graph.hpp"

namespace softnpu {

// `ze_graph_build_log_handle_t`: the output of the compiler, or the reason of its failure.
class BuildLog : public Object {
public:
    static constexpr Kind KIND = Kind::build_log;
    explicit BuildLog(std::string text) : text(std::move(text)) {}
    const std::string text;
};

// `ze_graph_query_network_handle_t`: which layers of a model the device executes.
class QueryNetwork : public Object {
public:
    static constexpr Kind KIND = Kind::query_network;
    QueryNetwork(std::weak_ptr<Object> context, std::string layers)
        : Object(std::move(context)), layers(std::move(layers)) {}
    const std::string layers;  // <name><name>...
};

// Compiles or imports, with the cache of the environment. Refuses arguments of more than 5 dimensions.
std::shared_ptr<Graph> create_graph(const std::shared_ptr<Context>& context, const ze_graph_desc_t* desc,
                                    uint32_t flags);
std::shared_ptr<QueryNetwork> query_network(const std::shared_ptr<Context>& context,
                                            const ze_graph_desc_t* desc);

// The log of this thread's last failure under `with_build_failure`, at most 16 KiB. The creation of a graph
// replaces it by the state of the cache.
const char* last_build_log() noexcept;
void keep_build_failure(const ErrorInfo& info);

// Runs a creation, load or export of a graph, and keeps the log of a failure.
template <class F>
auto with_build_failure(F&& body) {
    try {
        return body();
    } catch (const Error& failure) {
        keep_build_failure(failure.info());
        throw;
    }
}

}  // namespace softnpu
