#include "base/utf8.hpp"

#include <cstdint>

namespace softnpu {

namespace {

// The length of the character at `at`; 0 if there is none.
size_t character(std::string_view text, size_t at) {
    const auto byte = [&](size_t index) { return static_cast<uint8_t>(text[index]); };
    const uint8_t lead = byte(at);
    if (lead < 0x80) return 1;
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || length > text.size() - at) return 0;
    for (size_t next = at + 1; next < at + length; ++next)
        if ((byte(next) & 0xc0) != 0x80) return 0;
    const uint8_t second = byte(at + 1);
    const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
    const bool surrogate = lead == 0xed && second >= 0xa0;
    const bool beyond = lead == 0xf4 && second >= 0x90;
    return overlong || surrogate || beyond ? 0 : length;
}

}  // namespace

bool is_utf8(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
        const size_t length = character(text, at);
        if (length == 0) return false;
        at += length;
    }
    return true;
}

std::string in_utf8(std::string_view text) {
    static const char* const digits = "0123456789abcdef";
    std::string made;
    for (size_t at = 0; at < text.size();) {
        const size_t length = character(text, at);
        if (length == 0) {
            const auto byte = static_cast<uint8_t>(text[at++]);
            made.append("\\x").append({digits[byte >> 4], digits[byte & 0xf]});
            continue;
        }
        made.append(text.substr(at, length));
        at += length;
    }
    return made;
}

}  // namespace softnpu
