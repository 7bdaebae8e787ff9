#include "graph/meta.hpp"

#include <algorithm>
#include <cstring>

#include "base/error_info.hpp"
#include "base/fd.hpp"
#include "wire/msgpack.hpp"

namespace softnpu {

namespace {

constexpr size_t HEADER_SIZE = 64;
constexpr uint32_t METADATA = 1;
constexpr uint32_t MAX_SECTIONS = 32;

struct Section {
    uint32_t type;
    uint32_t flags;
    uint64_t offset;
    uint64_t size;
    uint64_t reserved;
    uint8_t digest[32];
};
static_assert(sizeof(Section) == 64);

Error bad_blob(const std::string& found, const std::string& expected) {
    return invalid_native_binary("blob from the daemon", found, expected);
}

std::vector<int64_t> integers(const std::vector<Value>& items) {
    std::vector<int64_t> numbers;
    for (const Value& item : items) numbers.push_back(item.as_signed());
    return numbers;
}

ArgumentMeta argument_meta(const Value& value) {
    ArgumentMeta meta;
    meta.name = value.string("name");
    for (const Value& name : value.array("names")) meta.names.push_back(name.text);
    meta.input = value.flag("input");
    meta.element_type = value.string("element_type");
    meta.shape = integers(value.array("shape"));
    meta.layout = value.string("layout");
    meta.byte_size = value.integer("byte_size");
    meta.friendly_name = value.string("friendly_name");
    meta.model_type = value.string("model_type");
    meta.model_shape = integers(value.array("model_shape"));
    meta.strides = value.flag("strides");
    meta.partial_shape = value.string("partial_shape");
    return meta;
}

}  // namespace

uint64_t ArgumentMeta::element_size() const {
    uint64_t elements = 1;
    for (const int64_t dim : shape) elements *= static_cast<uint64_t>(dim);
    return elements == 0 ? 1 : std::max<uint64_t>(1, byte_size / elements);
}

GraphMeta read_meta(int fd, uint64_t length) {
    char header[HEADER_SIZE];
    read_all("blob from the daemon", fd, header, sizeof header, 0);
    uint32_t count;
    std::memcpy(&count, header + 12, sizeof count);
    if (std::memcmp(header, "SNPUBLOB", 8) != 0 || count == 0 || count > MAX_SECTIONS) {
        throw bad_blob("another header", "'SNPUBLOB' and 1 to 32 sections");
    }
    std::vector<Section> sections(count);
    read_all("blob from the daemon", fd, sections.data(), sections.size() * sizeof(Section), HEADER_SIZE);
    for (const Section& section : sections) {
        if (section.type != METADATA) continue;
        if (section.offset > length || section.size > length - section.offset) {
            throw bad_blob("metadata outside of it", "a section inside the blob");
        }
        std::string data(section.size, '\0');
        read_all("blob from the daemon", fd, data.data(), data.size(), section.offset);
        const Value value = unpack(data, "metadata of the blob");
        GraphMeta meta;
        meta.name = value.string("name");
        meta.operations = value.integer("operations");
        if (const Value* const config = value.find("config"))
            meta.profiled = config->string("PERF_COUNT") == "YES";
        for (const Value& argument : value.array("arguments")) {
            meta.arguments.push_back(argument_meta(argument));
        }
        return meta;
    }
    throw bad_blob("no metadata", "a metadata section");
}

}  // namespace softnpu
