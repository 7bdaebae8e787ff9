#include "graph/meta.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/error_info.hpp"
#include "base/fd.hpp"
#include "base/output.hpp"
#include "interface/schema.hpp"
#include "wire/msgpack.hpp"

namespace softnpu {

using namespace schema;

// ---------------------------------------------------------------- reading it

namespace {

Error bad_blob(const std::string& found, const std::string& expected) {
    return invalid_native_binary("blob from the daemon", found, expected);
}

std::vector<int64_t> integers(const std::vector<Value>& items) {
    std::vector<int64_t> numbers;
    for (const Value& item : items) numbers.push_back(item.as_signed());
    return numbers;
}

ArgumentMeta read_argument(const Value& value) {
    ArgumentMeta meta;
    meta.name = value.string(argument_meta::NAME);
    for (const Value& name : value.array(argument_meta::NAMES)) meta.names.push_back(name.text);
    meta.input = value.flag(argument_meta::INPUT);
    meta.element_type = value.string(argument_meta::ELEMENT_TYPE);
    meta.shape = integers(value.array(argument_meta::SHAPE));
    meta.byte_size = value.integer(argument_meta::BYTE_SIZE);
    meta.friendly_name = value.string(argument_meta::FRIENDLY_NAME);
    meta.node_name = value.string(argument_meta::NODE_NAME);
    meta.model_shape = integers(value.array(argument_meta::MODEL_SHAPE));
    meta.strides = value.flag(argument_meta::STRIDES);
    meta.partial_shape = value.string(argument_meta::PARTIAL_SHAPE);
    meta.unbounded = value.flag(argument_meta::UNBOUNDED);
    return meta;
}

}  // namespace

uint64_t ArgumentMeta::element_size() const {
    uint64_t elements = 1;
    for (const int64_t dim : shape) elements *= static_cast<uint64_t>(dim);
    return elements == 0 ? 1 : std::max<uint64_t>(1, byte_size / elements);
}

GraphMeta read_meta(int fd, uint64_t length) {
    BlobHeader header;
    read_all("blob from the daemon", fd, &header, sizeof header, 0);
    if (blob::MAGIC != std::string_view(header.magic, sizeof header.magic) || header.sections == 0 ||
        header.sections > blob::MAX_SECTIONS) {
        throw bad_blob("another header", "'SNPUBLOB' and 1 to 32 sections");
    }
    std::vector<BlobSection> sections(header.sections);
    read_all("blob from the daemon", fd, sections.data(), sections.size() * sizeof(BlobSection),
             sizeof header);
    for (const BlobSection& section : sections) {
        if (section.type != blob_section::METADATA) continue;
        if (section.offset > length || section.size > length - section.offset) {
            throw bad_blob("metadata outside of it", "a section inside the blob");
        }
        std::string data(section.size, '\0');
        read_all("blob from the daemon", fd, data.data(), data.size(), section.offset);
        const Value value = unpack(data, "metadata of the blob");
        GraphMeta meta;
        meta.name = value.string(graph_meta::NAME);
        meta.platform = value.string(graph_meta::PLATFORM);
        meta.operations = value.integer(graph_meta::OPERATIONS);
        if (const Value* const config = value.find(graph_meta::CONFIG)) {
            meta.profiled = config->string("PERF_COUNT") == "YES";
            meta.unbounded_bytes = std::strtoull(config->string("NPU_UNBOUNDED_BYTES").c_str(), nullptr, 10);
        }
        for (const Value& argument : value.array(graph_meta::ARGUMENTS)) {
            meta.arguments.push_back(read_argument(argument));
        }
        return meta;
    }
    throw bad_blob("no metadata", "a metadata section");
}

std::string requirements(const std::string& platform) {
    return format("softnpu=[blob=%u;npu=%s]", blob::MAJOR, platform.c_str());
}

// ---------------------------------------------------------------- dimensions

namespace {

constexpr uint64_t DEFAULT_BYTES = 1ull << 38;
constexpr uint64_t LARGEST = INT32_MAX;

struct Range {
    uint64_t low = 0;
    uint64_t high = LARGEST;

    uint64_t width() const { return low == high ? 0 : high; }
};

// `3`, `1..8`, `..8`, `2..`, `?` as OpenVINO writes them.
Range range_of(const std::string& text) {
    Range range;
    const size_t dots = text.find("..");
    const std::string high = dots == std::string::npos ? text : text.substr(dots + 2);
    if (text != "?") range.low = std::strtoull(text.c_str(), nullptr, 10);
    if (text != "?" && !high.empty())
        range.high = std::min(LARGEST, uint64_t{std::strtoull(high.c_str(), nullptr, 10)});
    return range;
}

std::vector<Range> ranges_of(const std::string& partial_shape) {
    std::vector<Range> ranges;
    for (size_t at = 1; at < partial_shape.size();) {
        const size_t end = partial_shape.find_first_of(",]", at);
        ranges.push_back(range_of(partial_shape.substr(at, end - at)));
        at = end == std::string::npos ? end : end + 1;
    }
    return ranges;
}

uint64_t power(uint64_t base, size_t exponent) {
    uint64_t product = 1;
    while (exponent-- > 0) {
        if (__builtin_mul_overflow(product, base, &product)) return UINT64_MAX;
    }
    return product;
}

// The largest number whose power is at most `value`, at least 1.
uint64_t root(uint64_t value, size_t degree) {
    value = std::min(value, UINT64_MAX - 1);  // the powers end at UINT64_MAX
    uint64_t low = 1, high = value;
    while (low < high) {
        const uint64_t middle = high - (high - low) / 2;
        if (power(middle, degree) <= value) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

}  // namespace

std::vector<uint32_t> dimensions(const GraphMeta& graph, const ArgumentMeta& meta) {
    if (!meta.unbounded) return {meta.shape.begin(), meta.shape.end()};
    const std::vector<Range> ranges = ranges_of(meta.partial_shape);
    std::vector<size_t> order(ranges.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t one, size_t other) { return ranges[one].width() < ranges[other].width(); });
    uint64_t room =
        (graph.unbounded_bytes == 0 ? DEFAULT_BYTES : graph.unbounded_bytes) / meta.element_size();
    std::vector<uint32_t> dims(ranges.size());
    for (size_t done = 0; done < order.size(); ++done) {
        const Range& range = ranges[order[done]];
        const uint64_t dim = std::max(range.low, std::min(range.high, root(room, order.size() - done)));
        dims[order[done]] = static_cast<uint32_t>(dim);
        room /= std::max<uint64_t>(1, dim);
    }
    return dims;
}

std::set<size_t> sparse_sizes(const GraphMeta& graph) {
    std::set<size_t> sizes;
    for (const ArgumentMeta& meta : graph.arguments) {
        if (!meta.unbounded) continue;
        uint64_t size = meta.element_size();
        for (const uint32_t dim : dimensions(graph, meta)) size *= dim;
        sizes.insert(size);
        sizes.insert((size + schema::blob::PAGE - 1) / schema::blob::PAGE * schema::blob::PAGE);
    }
    return sizes;
}

// ---------------------------------------------------------------- structures of the graph extension

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
