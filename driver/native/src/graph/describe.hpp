// Arguments of a graph in the structures of the graph extension.
#pragma once

#include "abi/graph.hpp"
#include "graph/meta.hpp"

namespace softnpu {

// `stype` and `pNext` of the structures stay as they are.
void describe(const GraphMeta& graph, const ArgumentMeta& meta, ze_graph_argument_properties_t& out);
void describe(const GraphMeta& graph, const ArgumentMeta& meta, ze_graph_argument_properties_2_t& out);
void describe(const GraphMeta& graph, const ArgumentMeta& meta, ze_graph_argument_properties_3_t& out);
void describe(const ArgumentMeta& meta, ze_graph_argument_metadata_t& out);

}  // namespace softnpu
