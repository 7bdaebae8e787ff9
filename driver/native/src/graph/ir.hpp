// The constants of an OpenVINO IR, found in its XML.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace softnpu {

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

// All constants that have an offset and a size.
std::vector<ConstLayer> find_constants(std::string_view xml);
// The value of an attribute that is a number; the attribute's name comes after a blank.
std::optional<Span> find_number(std::string_view xml, Span within, std::string_view name);
std::optional<uint64_t> number_of(std::string_view xml, Span within, std::string_view name);
std::optional<std::string_view> text_of(std::string_view xml, Span within, std::string_view name);
// The name of the model.
std::string model_name(std::string_view xml);

}  // namespace softnpu
