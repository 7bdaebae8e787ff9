#include "graph/serialized.hpp"

#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "interface/schema.hpp"

namespace softnpu {

namespace {

// ---------------------------------------------------------------- constants in the XML of an OpenVINO IR

// Bytes of the XML from `begin` to `end`.
struct Span {
    size_t begin = 0;
    size_t end = 0;
};

// A `Const` layer. `data` has the attributes of its <data>; `pointer` those of its
// WeightsPointerAttribute, and `pointer_tag` the whole tag with the blanks before it.
struct ConstLayer {
    std::string name;
    Span data;
    std::optional<Span> pointer;
    Span pointer_tag;
    uint64_t offset = 0;
    uint64_t size = 0;
};

constexpr size_t NONE = std::string_view::npos;

bool is_blank(char letter) { return letter == ' ' || letter == '\t' || letter == '\n' || letter == '\r'; }
bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

size_t skip_blanks(std::string_view xml, size_t at) {
    while (at < xml.size() && is_blank(xml[at])) ++at;
    return at;
}

// Where a tag ends: the next '>' outside of quotes.
size_t end_of_tag(std::string_view xml, size_t at) {
    for (bool quoted = false; at < xml.size(); ++at) {
        if (xml[at] == '"') quoted = !quoted;
        if (xml[at] == '>' && !quoted) return at;
    }
    return NONE;
}

bool starts_with(std::string_view xml, size_t at, std::string_view text) {
    return xml.compare(at, text.size(), text) == 0;
}

// The value of the next attribute of this name, from `at` on.
std::optional<Span> next_value(std::string_view xml, size_t at, size_t end, std::string_view name) {
    const std::string wanted = std::string(name) + "=\"";
    for (;;) {
        const size_t name_at = xml.find(wanted, at);
        if (name_at == NONE || name_at + wanted.size() > end) return std::nullopt;
        const size_t begin = name_at + wanted.size();
        const size_t close = xml.find('"', begin);
        if (name_at > 0 && is_blank(xml[name_at - 1]) && close != NONE && close < end)
            return Span{begin, close};
        at = begin;
    }
}

// The value of an attribute that is a number; the attribute's name comes after a blank.
std::optional<Span> find_number(std::string_view xml, Span within, std::string_view name) {
    for (size_t at = within.begin;;) {
        const auto value = next_value(xml, at, within.end, name);
        if (!value) return std::nullopt;
        const size_t length = value->end - value->begin;
        bool digits = length > 0 && length <= 20;
        for (size_t index = value->begin; index < value->end; ++index)
            digits = digits && is_digit(xml[index]);
        if (digits) return value;
        at = value->begin;
    }
}

std::optional<uint64_t> number_of(std::string_view xml, Span within, std::string_view name) {
    const auto value = find_number(xml, within, name);
    if (!value) return std::nullopt;
    uint64_t number = 0;
    const auto read = std::from_chars(xml.data() + value->begin, xml.data() + value->end, number);
    if (read.ec != std::errc()) return std::nullopt;
    return number;
}

std::optional<std::string_view> text_of(std::string_view xml, Span within, std::string_view name) {
    const auto value = next_value(xml, within.begin, within.end, name);
    if (!value) return std::nullopt;
    return xml.substr(value->begin, value->end - value->begin);
}

std::string unescaped(std::string_view text) {
    static const std::pair<std::string_view, char> entities[] = {
        {"&lt;", '<'}, {"&gt;", '>'}, {"&amp;", '&'}, {"&quot;", '"'}, {"&apos;", '\''}};
    std::string made;
    for (size_t at = 0; at < text.size();) {
        bool replaced = false;
        for (const auto& [entity, letter] : entities) {
            if (!starts_with(text, at, entity)) continue;
            made.push_back(letter);
            at += entity.size();
            replaced = true;
            break;
        }
        if (!replaced) made.push_back(text[at++]);
    }
    return made;
}

// The tag <attribute ... name="WeightsPointerAttribute" ...> among the attributes of a layer.
void find_pointer(std::string_view xml, Span info, ConstLayer& layer) {
    for (size_t at = info.begin;;) {
        const size_t tag = xml.find("<attribute", at);
        if (tag == NONE || tag >= info.end) return;
        const size_t end = end_of_tag(xml, tag);
        if (end == NONE || end >= info.end) return;
        const Span attributes{tag + 10, end};
        if (text_of(xml, attributes, "name") == "WeightsPointerAttribute") {
            size_t begin = tag;
            while (begin > info.begin && is_blank(xml[begin - 1])) --begin;
            layer.pointer = attributes;
            layer.pointer_tag = {begin, end + 1};
            return;
        }
        at = end;
    }
}

// The constant that a layer is, if it is one; `at` is behind "<layer", and moves behind what was read.
std::optional<ConstLayer> read_layer(std::string_view xml, size_t& at) {
    const Span head{at, end_of_tag(xml, at)};
    if (head.end == NONE) {
        at = xml.size();
        return std::nullopt;
    }
    at = skip_blanks(xml, head.end + 1);
    if (!starts_with(xml, at, "<data") || text_of(xml, head, "type") != "Const") return std::nullopt;
    ConstLayer layer;
    layer.data = {at + 5, end_of_tag(xml, at)};
    if (layer.data.end == NONE) return std::nullopt;
    at = layer.data.end + 1;
    const auto offset = number_of(xml, layer.data, "offset");
    const auto size = number_of(xml, layer.data, "size");
    if (!offset || !size) return std::nullopt;
    layer.offset = *offset;
    layer.size = *size;
    if (const auto name = text_of(xml, head, "name")) layer.name = unescaped(*name);
    const size_t info = skip_blanks(xml, at);
    if (starts_with(xml, info, "<rt_info>")) {
        const size_t end = xml.find("</rt_info>", info);
        if (end != NONE) {
            find_pointer(xml, {info + 9, end}, layer);
            at = end;
        }
    }
    return layer;
}

// All constants that have an offset and a size.
std::vector<ConstLayer> find_constants(std::string_view xml) {
    std::vector<ConstLayer> layers;
    for (size_t at = xml.find("<layer"); at != NONE; at = xml.find("<layer", at)) {
        at += 6;
        if (auto layer = read_layer(xml, at)) layers.push_back(std::move(*layer));
    }
    return layers;
}

// The name of the model.
std::string model_name(std::string_view xml) {
    const size_t net = xml.substr(0, 1 << 16).find("<net");
    const size_t end = net == NONE ? NONE : end_of_tag(xml, net);
    if (end == NONE) return "model";
    const auto name = text_of(xml, {net, end}, "name");
    return name ? unescaped(*name) : "model";
}

// ---------------------------------------------------------------- the two forms

constexpr uint64_t XML_LIMIT = 256ull << 20;
constexpr size_t STREAM_HEADER = 48;
constexpr size_t COPYING_HEADER = 16;
constexpr size_t VERSION_SIZE = 4;

struct Range {
    uint64_t offset = 0;
    uint64_t size = 0;
};

// The parts of the input.
struct Form {
    uint16_t major = 0;
    uint16_t minor = 0;
    Range xml;
    Range weights;
    bool has_pointers = false;
};

template <class T>
T read(const uint8_t* data, size_t at) {
    T value;
    std::memcpy(&value, data + at, sizeof value);
    return value;
}

std::string decimal(uint64_t value) { return std::to_string(value); }

Error bad_size(const std::string& part, const std::string& found, const std::string& expected) {
    return invalid_size("serialised model, " + part, found, expected);
}

Form stream_form(const uint8_t* data, size_t size) {
    Range parts[3];
    static const char* const names[3] = {"custom data", "constants", "XML"};
    for (size_t number = 0; number < 3; ++number) {
        parts[number] = {read<uint64_t>(data, 16 * number), read<uint64_t>(data, 16 * number + 8)};
        if (parts[number].offset > size || parts[number].size > size - parts[number].offset) {
            throw bad_size(names[number],
                           decimal(parts[number].size) + " bytes at " + decimal(parts[number].offset),
                           "a range inside " + decimal(size) + " bytes");
        }
    }
    return {read<uint16_t>(data, parts[0].offset), read<uint16_t>(data, parts[0].offset + 2), parts[2],
            parts[1], true};
}

Form copying_form(const uint8_t* data, size_t size) {
    if (size < COPYING_HEADER) throw bad_size("header", decimal(size) + " bytes", "at least 16");
    const auto parts = read<uint32_t>(data, 4);
    if (parts != 2) {
        throw invalid_argument("serialised model", decimal(parts) + " parts",
                               "2, XML and weights, or the header of a stream");
    }
    const auto xml_size = read<uint64_t>(data, 8);
    const uint64_t left = size - COPYING_HEADER;
    if (xml_size > left || left - xml_size < 8) {
        throw bad_size("XML", decimal(xml_size) + " bytes", "at most " + decimal(left < 8 ? 0 : left - 8));
    }
    const uint64_t at = COPYING_HEADER + xml_size;
    const auto weights_size = read<uint64_t>(data, at);
    if (weights_size != size - at - 8) {
        throw bad_size("weights", decimal(weights_size) + " bytes",
                       decimal(size - at - 8) + ", the rest of the input");
    }
    return {read<uint16_t>(data, 0),
            read<uint16_t>(data, 2),
            {COPYING_HEADER, xml_size},
            {at + 8, weights_size},
            false};
}

Form form_of(const uint8_t* data, size_t size) {
    if (size >= STREAM_HEADER && read<uint64_t>(data, 0) == STREAM_HEADER &&
        read<uint64_t>(data, 8) == VERSION_SIZE) {
        return stream_form(data, size);
    }
    return copying_form(data, size);
}

// The memory of a constant of the no-copy form.
Piece pointed(std::string_view xml, const ConstLayer& layer) {
    const auto version = text_of(xml, *layer.pointer, "version");
    const auto address = number_of(xml, *layer.pointer, "mp");
    const auto length = number_of(xml, *layer.pointer, "ms");
    if (version != "0" || !address || !length) {
        throw invalid_argument(
            "constant '" + layer.name + "'",
            "WeightsPointerAttribute" +
                std::string(xml.substr(layer.pointer->begin,
                                       std::min<size_t>(100, layer.pointer->end - layer.pointer->begin))),
            "version 0 with mp (address) and ms (bytes)",
            "use NPU_MODEL_SERIALIZER_VERSION=ALL_WEIGHTS_COPY");
    }
    if (*length != 0 && (*address == 0 || *address + *length < *address)) {
        throw invalid_argument("constant '" + layer.name + "'",
                               format("%lu bytes at address %#lx", *length, *address),
                               "memory of this process");
    }
    return {layer.name, *address, *length};
}

Piece contained(const ConstLayer& layer, uint64_t base, uint64_t size) {
    if (layer.offset > size || layer.size > size - layer.offset) {
        throw bad_size("constant '" + layer.name + "'",
                       decimal(layer.size) + " bytes at " + decimal(layer.offset),
                       "a range inside " + decimal(size));
    }
    return {layer.name, base + layer.offset, layer.size};
}

// The XML with these offsets and sizes of its constants, without the pointers.
std::string rewritten(std::string_view xml, const std::vector<ConstLayer>& layers,
                      const std::vector<uint64_t>& offsets, const std::vector<Piece>& pieces) {
    std::string made;
    made.reserve(xml.size());
    size_t last = 0;
    const auto replace = [&](Span span, const std::string& text) {
        made.append(xml.substr(last, span.begin - last)).append(text);
        last = span.end;
    };
    for (size_t index = 0; index < layers.size(); ++index) {
        const ConstLayer& layer = layers[index];
        const Span offset = *find_number(xml, layer.data, "offset");
        const Span size = *find_number(xml, layer.data, "size");
        const std::string new_offset = decimal(offsets[index]), new_size = decimal(pieces[index].length);
        if (offset.begin < size.begin) {
            replace(offset, new_offset);
            replace(size, new_size);
        } else {
            replace(size, new_size);
            replace(offset, new_offset);
        }
        if (layer.pointer) replace(layer.pointer_tag, "");
    }
    return made.append(xml.substr(last));
}

GraphSource source_of(std::string_view xml, std::vector<WeightFile> weights) {
    return {model_name(xml), sealed_copy("softnpu-ir", xml.data(), xml.size()), xml.size(),
            std::move(weights)};
}

GraphSource with_pointers(std::string_view xml, uint64_t base, uint64_t size) {
    const std::vector<ConstLayer> layers = find_constants(xml);
    std::vector<Piece> pieces;
    for (const auto& layer : layers)
        pieces.push_back(layer.pointer ? pointed(xml, layer) : contained(layer, base, size));
    Gathered gathered = gather(pieces);
    return source_of(rewritten(xml, layers, gathered.offsets, pieces), std::move(gathered.files));
}

GraphSource with_copies(std::string_view xml, uint64_t base, uint64_t size) {
    if (size == 0) return source_of(xml, {});
    Gathered gathered = gather({{"weights", base, size}});
    const uint64_t lead = gathered.offsets[0];
    if (lead == 0) return source_of(xml, std::move(gathered.files));
    // the weights begin in the middle of a page of a file: offsets count from there
    const std::vector<ConstLayer> layers = find_constants(xml);
    std::vector<uint64_t> offsets;
    std::vector<Piece> pieces;
    for (const auto& layer : layers) {
        offsets.push_back(layer.offset + lead);
        pieces.push_back({layer.name, 0, layer.size});
    }
    return source_of(rewritten(xml, layers, offsets, pieces), std::move(gathered.files));
}

}  // namespace

std::vector<int> GraphSource::fds() const {
    std::vector<int> all{xml.get()};
    for (const auto& file : weights) all.push_back(file.fd.get());
    return all;
}

void GraphSource::describe(MapWriter& message) const {
    message.put(schema::graph_create::NAME, name).put(schema::graph_create::XML_LENGTH, xml_length);
    std::vector<MapWriter> sources;
    for (const auto& file : weights) {
        MapWriter source = MapWriter::untagged();
        source.put(schema::weight_source::OFFSET, file.offset)
            .put(schema::weight_source::LENGTH, file.length);
        sources.push_back(std::move(source));
    }
    if (!sources.empty()) message.put(schema::graph_create::WEIGHTS, sources);
}

GraphSource parse_model(const uint8_t* data, size_t size, const CompilerInfo& compiler) {
    const Form form = form_of(data, size);
    if (form.major != compiler.major) {
        throw unsupported_version(
            "serialised model", format("written for compiler %u.%u", form.major, form.minor),
            format("%u.%u, the version of this device", compiler.major, compiler.minor));
    }
    if (form.xml.size == 0 || form.xml.size > XML_LIMIT) {
        throw bad_size("XML", decimal(form.xml.size) + " bytes", "1 to " + decimal(XML_LIMIT));
    }
    // a copy: the program may change its bytes meanwhile
    const std::string xml(reinterpret_cast<const char*>(data) + form.xml.offset, form.xml.size);
    const uint64_t base = reinterpret_cast<uint64_t>(data) + form.weights.offset;
    return form.has_pointers ? with_pointers(xml, base, form.weights.size)
                             : with_copies(xml, base, form.weights.size);
}

}  // namespace softnpu
