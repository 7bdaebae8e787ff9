#include "graph/describe.hpp"

#include <cstring>
#include <functional>

#include "base/output.hpp"
#include "graph/bounds.hpp"
#include "interface/schema.hpp"

namespace softnpu {

namespace {

struct Numbered {
    const char* name;
    uint32_t number;
};

constexpr Numbered PRECISIONS[] = {
    {"f32", 0x1},     {"f16", 0x2},     {"u16", 0x3},     {"u8", 0x4},   {"i32", 0x5},  {"i16", 0x6},
    {"i8", 0x7},      {"u1", 0x8},      {"bf16", 0x9},    {"u32", 0xa},  {"u4", 0xb},   {"i4", 0xc},
    {"dynamic", 0xd}, {"boolean", 0xe}, {"f64", 0xf},     {"u64", 0x10}, {"i64", 0x11}, {"nf4", 0x12},
    {"f8e4m3", 0x13}, {"f8e5m2", 0x14}, {"f8e8m0", 0x15}, {"u2", 0x16},  {"i2", 0x17}};
constexpr Numbered METADATA_TYPES[] = {{"dynamic", 1}, {"boolean", 2}, {"bf16", 3}, {"f16", 4}, {"f32", 5},
                                       {"f64", 6},     {"i4", 7},      {"i8", 8},   {"i16", 9}, {"i32", 10},
                                       {"i64", 11},    {"u1", 12},     {"u4", 13},  {"u8", 14}, {"u16", 15},
                                       {"u32", 16},    {"u64", 17}};
constexpr uint32_t RANK_LAYOUTS[] = {0, 0x60, 0xc1, 0x80, 1, 3};

template <size_t N>
uint32_t number_in(const Numbered (&table)[N], const std::string& name) {
    for (const Numbered& entry : table) {
        if (name == entry.name) return entry.number;
    }
    return 0;
}

// The default for so many dimensions; 0 (ANY) for more than five.
uint32_t layout_of_rank(size_t rank) {
    return rank < sizeof RANK_LAYOUTS / sizeof *RANK_LAYOUTS ? RANK_LAYOUTS[rank] : 0;
}

const std::string& friendly_name(const ArgumentMeta& meta) {
    return meta.friendly_name.empty() ? meta.name : meta.friendly_name;
}

// The operation whose value the argument is.
const std::string& node_name(const ArgumentMeta& meta) {
    return meta.node_name.empty() ? meta.name : meta.node_name;
}

uint32_t put_names(const ArgumentMeta& meta,
                   char (&out)[ZE_MAX_GRAPH_TENSOR_NAMES_SIZE][ZE_MAX_GRAPH_ARGUMENT_NAME]) {
    const size_t count = std::min(meta.names.size(), ZE_MAX_GRAPH_TENSOR_NAMES_SIZE);
    for (size_t index = 0; index < count; ++index) copy_text(out[index], meta.names[index]);
    return static_cast<uint32_t>(count);
}

// Programs pair the two arguments of a state, and an argument and its shape, by the text after the prefix.
// Long names are cut there and end in a hash of the whole text: several may begin alike.
void put_name(const ArgumentMeta& meta, char (&out)[ZE_MAX_GRAPH_ARGUMENT_NAME]) {
    std::string_view name = node_name(meta), prefix;
    for (const std::string_view known :
         {schema::blob::READ_VALUE, schema::blob::ASSIGN, schema::blob::SHAPE_TENSOR}) {
        if (name.substr(0, known.size()) == known) prefix = known;
    }
    name.remove_prefix(prefix.size());
    constexpr size_t room = ZE_MAX_GRAPH_ARGUMENT_NAME - 1 - schema::blob::READ_VALUE.size(), hashed = 9;
    if (name.size() <= room) return copy_text(out, node_name(meta));
    char begin[room - hashed + 1];
    copy_text(begin, name);
    const auto hash = static_cast<unsigned>(std::hash<std::string_view>()(name));
    copy_text(out, std::string(prefix) + begin + format("~%08x", hash));
}

}  // namespace

void describe(const GraphMeta& graph, const ArgumentMeta& meta, ze_graph_argument_properties_t& out) {
    put_name(meta, out.name);
    out.type = meta.input ? ZE_GRAPH_ARGUMENT_TYPE_INPUT : ZE_GRAPH_ARGUMENT_TYPE_OUTPUT;
    const std::vector<uint32_t> dims = dimensions(graph, meta);
    for (size_t index = 0; index < ZE_MAX_GRAPH_ARGUMENT_DIMENSIONS_SIZE; ++index) {
        out.dims[index] = index < dims.size() ? dims[index] : 1;
    }
    // build flags are applied to the network before it is compiled
    out.networkPrecision = out.devicePrecision = number_in(PRECISIONS, meta.element_type);
    out.networkLayout = out.deviceLayout = layout_of_rank(meta.shape.size());
}

void describe(const GraphMeta& graph, const ArgumentMeta& meta, ze_graph_argument_properties_2_t& out) {
    describe(graph, meta, out.base);
    out.quantReverseScale = meta.input ? 1.0f : 0.0f;
    out.quantZeroPoint = 0;
}

void describe(const GraphMeta& graph, const ArgumentMeta& meta, ze_graph_argument_properties_3_t& out) {
    describe(graph, meta, out.base);
    out.dims_count = static_cast<uint32_t>(meta.shape.size());  // at most 5: see creation.cpp
    copy_text(out.debug_friendly_name, friendly_name(meta));
    out.associated_tensor_names_count = put_names(meta, out.associated_tensor_names);
}

void describe(const ArgumentMeta& meta, ze_graph_argument_metadata_t& out) {
    out.type = meta.input ? ZE_GRAPH_ARGUMENT_TYPE_INPUT : ZE_GRAPH_ARGUMENT_TYPE_OUTPUT;
    copy_text(out.friendly_name, friendly_name(meta));
    out.data_type = number_in(METADATA_TYPES, meta.element_type);
    const size_t rank = std::min(meta.model_shape.size(), ZE_MAX_GRAPH_TENSOR_REF_DIMS);
    for (size_t index = 0; index < ZE_MAX_GRAPH_TENSOR_REF_DIMS; ++index) {
        // -1, a dynamic dimension, becomes UINT64_MAX
        out.shape[index] = index < rank ? static_cast<uint64_t>(meta.model_shape[index]) : 0;
    }
    out.shape_size = static_cast<uint32_t>(rank);
    out.tensor_names_count = put_names(meta, out.tensor_names);
    copy_text(out.input_name, node_name(meta));
}

}  // namespace softnpu
