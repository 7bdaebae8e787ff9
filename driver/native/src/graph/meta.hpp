// The metadata section of a blob: the graph and its arguments, and their form in the API.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "abi/extensions.hpp"

namespace softnpu {

struct ArgumentMeta {
    std::string name;
    std::vector<std::string> names;
    bool input = false;
    std::string element_type;
    std::vector<int64_t> shape;
    uint64_t byte_size = 0;
    std::string friendly_name;
    std::string node_name;
    std::vector<int64_t> model_shape;  // -1 is a dynamic dimension
    bool strides = false;
    std::string partial_shape;  // bounds of dynamic dimensions, such as [1..8,?,64]
    bool unbounded = false;     // `shape` is the smallest one: there is no largest

    bool is_dynamic() const { return !partial_shape.empty(); }
    // Bytes of one element.
    uint64_t element_size() const;
};

struct GraphMeta {
    std::string name;
    std::string platform;  // that it is compiled for
    bool profiled = false;
    uint64_t operations = 0;
    uint64_t unbounded_bytes = 0;         // property NPU_UNBOUNDED_BYTES, 0 without it
    std::vector<ArgumentMeta> arguments;  // all inputs, then all outputs
};

// The metadata of the blob in a descriptor. INVALID_NATIVE_BINARY if it is not a blob.
GraphMeta read_meta(int fd, uint64_t length);

// The compatibility string of blobs for a platform: equal strings, and the device runs the blob.
std::string requirements(const std::string& platform);

// ---------------------------------------------------------------- dimensions
//
// Those reported to programs for an argument without a largest shape. OpenVINO's plugin allocates their
// product before it knows any shape. So they are as large as a byte limit allows, and memory of exactly that
// size is sparse: its pages are allocated on use.

// The shape of an argument, the largest one if it has dynamic dimensions. Without a largest one: narrow
// dimensions have their bounds, what they leave is divided among the others.
std::vector<uint32_t> dimensions(const GraphMeta& graph, const ArgumentMeta& meta);

// The sizes that programs allocate for arguments without a largest shape: exact, and in whole pages.
std::set<size_t> sparse_sizes(const GraphMeta& graph);

// ---------------------------------------------------------------- structures of the graph extension

// `stype` and `pNext` of the structures stay as they are.
void describe(const GraphMeta& graph, const ArgumentMeta& meta, ze_graph_argument_properties_t& out);
void describe(const GraphMeta& graph, const ArgumentMeta& meta, ze_graph_argument_properties_2_t& out);
void describe(const GraphMeta& graph, const ArgumentMeta& meta, ze_graph_argument_properties_3_t& out);
void describe(const ArgumentMeta& meta, ze_graph_argument_metadata_t& out);

}  // namespace softnpu
