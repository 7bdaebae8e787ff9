#include "graph/ir.hpp"

#include <charconv>

namespace softnpu {

namespace {

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

}  // namespace

std::vector<ConstLayer> find_constants(std::string_view xml) {
    std::vector<ConstLayer> layers;
    for (size_t at = xml.find("<layer"); at != NONE; at = xml.find("<layer", at)) {
        at += 6;
        if (auto layer = read_layer(xml, at)) layers.push_back(std::move(*layer));
    }
    return layers;
}

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

std::string model_name(std::string_view xml) {
    const size_t net = xml.substr(0, 1 << 16).find("<net");
    const size_t end = net == NONE ? NONE : end_of_tag(xml, net);
    if (end == NONE) return "model";
    const auto name = text_of(xml, {net, end}, "name");
    return name ? unescaped(*name) : "model";
}

}  // namespace softnpu
