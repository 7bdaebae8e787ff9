// MessagePack, to the extent used by the messages of the firmware interface.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error_info.hpp"

namespace softnpu {

// Writes one map: its keys and values in the order of the calls.
class MapWriter {
public:
    explicit MapWriter(std::string_view tag);

    MapWriter& put(std::string_view key, uint64_t value);
    MapWriter& put_bool(std::string_view key, bool value);
    MapWriter& put(std::string_view key, std::string_view value);
    MapWriter& put(std::string_view key, const char* value) { return put(key, std::string_view(value)); }
    MapWriter& put(std::string_view key, const std::string& value) {
        return put(key, std::string_view(value));
    }
    MapWriter& put(std::string_view key, const std::vector<uint64_t>& values);
    MapWriter& put_texts(std::string_view key, const std::vector<std::string_view>& values);
    // A value that is a map itself, or an array of such.
    MapWriter& put(std::string_view key, const MapWriter& value);
    MapWriter& put(std::string_view key, const std::vector<MapWriter>& values);

    std::string bytes() const;

    static MapWriter untagged() { return MapWriter(); }

private:
    MapWriter() = default;
    void key(std::string_view key);

    size_t count_ = 0;
    std::string body_;
};

// A decoded value.
struct Value {
    enum class Type : uint8_t { nil, boolean, integer, real, text, bytes, array, map };

    Type type = Type::nil;
    bool negative = false;
    uint64_t number = 0;  // integers and booleans; a negative one in two's complement
    double real = 0;
    std::string text;  // texts and bytes
    std::vector<Value> items;
    std::vector<std::pair<std::string, Value>> fields;

    // The field of a map, or null.
    const Value* find(std::string_view key) const;
    uint64_t integer(std::string_view key, uint64_t otherwise = 0) const;
    uint32_t integer32(std::string_view key) const { return static_cast<uint32_t>(integer(key)); }
    int64_t as_signed() const { return static_cast<int64_t>(number); }
    double as_real() const { return type == Type::real ? real : static_cast<double>(as_signed()); }
    bool flag(std::string_view key) const;
    std::string string(std::string_view key) const;
    // The elements of an array; none without the key.
    const std::vector<Value>& array(std::string_view key) const;
};

// Decodes one value and nothing behind it; throws Error with what is wrong.
Value unpack(std::string_view data, const char* subject);

// Error information as it travels in `failed` messages and in rings.
ErrorInfo decode_error_info(const Value& value);

// Texts of programs and models that are not UTF-8, which the firmware interface does not take.
bool is_utf8(std::string_view text);
// Writes each byte that is no UTF-8 as its escape, such as \xe4.
std::string in_utf8(std::string_view text);

}  // namespace softnpu
