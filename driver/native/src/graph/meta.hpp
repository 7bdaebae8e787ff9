// The metadata section of a blob.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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
    bool profiled = false;
    uint64_t operations = 0;
    uint64_t unbounded_bytes = 0;         // property NPU_UNBOUNDED_BYTES, 0 without it
    std::vector<ArgumentMeta> arguments;  // all inputs, then all outputs
};

// The metadata of the blob in a descriptor. INVALID_NATIVE_BINARY for what is no blob.
GraphMeta read_meta(int fd, uint64_t length);

}  // namespace softnpu
