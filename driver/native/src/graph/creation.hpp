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

// What the descriptor says, with the cache that the environment asks for. Refuses a graph with an argument of
// more dimensions than the extension can tell.
std::shared_ptr<Graph> create_graph(const std::shared_ptr<Context>& context, const ze_graph_desc_t* desc,
                                    uint32_t flags);
std::shared_ptr<QueryNetwork> query_network(const std::shared_ptr<Context>& context,
                                            const ze_graph_desc_t* desc);

// The log of what failed last in this thread under `with_build_failure`; empty when nothing did.
const std::string& last_build_failure();
void keep_build_failure(const ErrorInfo& fault);

// Runs what programs ask that log about: whatever makes, loads or exports a graph.
template <class F>
auto with_build_failure(F&& body) {
    try {
        return body();
    } catch (const Error& failure) {
        keep_build_failure(failure.fault());
        throw;
    }
}

}  // namespace softnpu
