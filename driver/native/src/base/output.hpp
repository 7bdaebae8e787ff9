// Checks mandatory arguments; writes outputs with a size: a first call asks for the size, a second for the
// content.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error_info.hpp"

namespace softnpu {

inline void require_nonnull(const void* pointer, const char* name) {
    if (pointer == nullptr) {
        throw invalid_null_pointer(name, "null pointer", "an address");
    }
}

// Limits `*count` to the available elements (0: all); writes that many unless `out` is null.
template <class T, class Write>
void write_array(uint32_t* count, T* out, size_t available, Write&& write) {
    require_nonnull(count, "pCount");
    const bool asked = *count == 0;
    if (asked || *count > available) *count = static_cast<uint32_t>(available);
    if (out != nullptr && !asked) {
        for (uint32_t index = 0; index < *count; ++index) write(index, out[index]);
    }
}

// The same for calls that need an array whenever they are given its size.
template <class T, class Write>
void write_handles(uint32_t* count, T* out, const char* name, size_t available, Write&& write) {
    if (count != nullptr && *count > 0) require_nonnull(out, name);
    write_array(count, out, available, std::forward<Write>(write));
}

// Writes a text and its NUL, at most `*size` bytes.
template <class Size>
void write_text(Size* size, char* out, std::string_view text) {
    require_nonnull(size, "pSize");
    if (out != nullptr && *size > 0) {
        const size_t length = std::min<size_t>(*size - 1, text.size());
        text.copy(out, length);
        out[length] = '\0';
    }
    *size = static_cast<Size>(text.size() + 1);
}

// Bytes; too small a size is an error.
template <class Size>
void write_bytes(Size* size, uint8_t* out, const void* data, size_t length) {
    require_nonnull(size, "pSize");
    if (out != nullptr) {
        if (*size < length) {
            throw invalid_size("output", format("room for %zu bytes", static_cast<size_t>(*size)),
                               format("%zu bytes", length), "ask for the size first, with a null pointer");
        }
        std::copy_n(static_cast<const uint8_t*>(data), length, out);
    }
    *size = static_cast<Size>(length);
}

// Copies a text, cut between UTF-8 characters if too long.
template <size_t N>
void copy_text(char (&out)[N], std::string_view text) {
    size_t length = std::min(text.size(), N - 1);
    if (length < text.size()) {
        while (length > 0 && (text[length] & 0xc0) == 0x80) --length;
    }
    text.copy(out, length);  // not memcpy: an empty text may be a null pointer
    std::memset(out + length, 0, N - length);
}

}  // namespace softnpu
