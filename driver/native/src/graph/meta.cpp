#include "graph/meta.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/error_info.hpp"
#include "base/fd.hpp"
#include "interface/schema.hpp"
#include "wire/msgpack.hpp"

namespace softnpu {

using namespace schema;

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

}  // namespace softnpu
