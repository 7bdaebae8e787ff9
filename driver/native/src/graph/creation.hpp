// How graphs come to be: compiled from a model, or made of a native blob.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "graph/graph.hpp"

namespace softnpu {

// `ze_graph_build_log_handle_t`: what the compiler said of a graph, or why there is none.
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

// What the descriptor says, with the cache that the environment asks for. A failure is kept for the calling
// thread: see `last_build_failure`.
std::shared_ptr<Graph> create_graph(const std::shared_ptr<Context>& context, const ze_graph_desc_t* desc,
                                    uint32_t flags);
std::shared_ptr<QueryNetwork> query_network(const std::shared_ptr<Context>& context,
                                            const ze_graph_desc_t* desc);

// The log of the last creation that failed in this thread; empty when none did.
const std::string& last_build_failure();

}  // namespace softnpu
