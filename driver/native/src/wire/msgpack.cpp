#include "wire/msgpack.hpp"

#include <cstdint>
#include <cstring>

#include "interface/schema.hpp"

namespace softnpu {

namespace {

constexpr int MAX_DEPTH = 32;

void put_big(std::string& out, uint64_t value, int bytes) {
    for (int shift = (bytes - 1) * 8; shift >= 0; shift -= 8)
        out.push_back(static_cast<char>(value >> shift));
}

void put_integer(std::string& out, uint64_t value) {
    if (value < 0x80) {
        out.push_back(static_cast<char>(value));
    } else if (value <= 0xff) {
        out.push_back('\xcc');
        put_big(out, value, 1);
    } else if (value <= 0xffff) {
        out.push_back('\xcd');
        put_big(out, value, 2);
    } else if (value <= 0xffffffff) {
        out.push_back('\xce');
        put_big(out, value, 4);
    } else {
        out.push_back('\xcf');
        put_big(out, value, 8);
    }
}

void put_text(std::string& out, std::string_view text) {
    if (text.size() < 32) {
        out.push_back(static_cast<char>(0xa0 | text.size()));
    } else if (text.size() <= 0xff) {
        out.push_back('\xd9');
        put_big(out, text.size(), 1);
    } else if (text.size() <= 0xffff) {
        out.push_back('\xda');
        put_big(out, text.size(), 2);
    } else {
        out.push_back('\xdb');
        put_big(out, text.size(), 4);
    }
    out.append(text);
}

void put_count(std::string& out, size_t count, char fix, char wide) {
    if (count < 16) {
        out.push_back(static_cast<char>(fix | static_cast<char>(count)));
    } else if (count <= 0xffff) {
        out.push_back(wide);
        put_big(out, count, 2);
    } else {
        out.push_back(static_cast<char>(wide + 1));
        put_big(out, count, 4);
    }
}

class Reader {
public:
    Reader(std::string_view data, const char* subject) : data_(data), subject_(subject) {}

    Value value(int depth) {
        if (depth > MAX_DEPTH) refuse("is nested too deeply");
        const auto head = static_cast<uint8_t>(big(1));
        if (head < 0x80) return integer(head);
        if (head < 0x90) return map(head & 0x0f, depth);
        if (head < 0xa0) return array(head & 0x0f, depth);
        if (head < 0xc0) return text(head & 0x1f, Value::Type::text);
        if (head >= 0xe0) return negative(static_cast<int8_t>(head));
        switch (head) {
            case 0xc0: return {};
            case 0xc2:
            case 0xc3: return boolean(head == 0xc3);
            case 0xc4: return text(big(1), Value::Type::bytes);
            case 0xc5: return text(big(2), Value::Type::bytes);
            case 0xc6: return text(big(4), Value::Type::bytes);
            case 0xcb: return real(big(8));
            case 0xcc: return integer(big(1));
            case 0xcd: return integer(big(2));
            case 0xce: return integer(big(4));
            case 0xcf: return integer(big(8));
            case 0xd0: return negative(static_cast<int8_t>(big(1)));
            case 0xd1: return negative(static_cast<int16_t>(big(2)));
            case 0xd2: return negative(static_cast<int32_t>(big(4)));
            case 0xd3: return negative(static_cast<int64_t>(big(8)));
            case 0xd9: return text(big(1), Value::Type::text);
            case 0xda: return text(big(2), Value::Type::text);
            case 0xdb: return text(big(4), Value::Type::text);
            case 0xdc: return array(big(2), depth);
            case 0xdd: return array(big(4), depth);
            case 0xde: return map(big(2), depth);
            case 0xdf: return map(big(4), depth);
            default: break;
        }
        refuse(format("has type byte %#x at %zu", head, at_ - 1));
    }

    void end() {
        if (at_ != data_.size()) refuse(format("has %zu bytes behind its end", data_.size() - at_));
    }

private:
    [[noreturn]] void refuse(const std::string& found) {
        throw invalid_argument(subject_, "it " + found, "one msgpack value");
    }

    std::string_view read_bytes(uint64_t size) {
        if (size > data_.size() - at_) refuse(format("ends after %zu bytes", data_.size()));
        const std::string_view part = data_.substr(at_, size);
        at_ += size;
        return part;
    }

    uint64_t big(int bytes) {
        uint64_t value = 0;
        for (const char byte : read_bytes(static_cast<uint64_t>(bytes)))
            value = value << 8 | static_cast<uint8_t>(byte);
        return value;
    }

    static Value scalar(Value::Type type, uint64_t number) {
        Value value;
        value.type = type;
        value.number = number;
        return value;
    }

    static Value integer(uint64_t number) { return scalar(Value::Type::integer, number); }
    static Value boolean(bool flag) { return scalar(Value::Type::boolean, flag); }

    static Value negative(int64_t number) {
        Value value = integer(static_cast<uint64_t>(number));
        value.negative = number < 0;
        return value;
    }

    static Value real(uint64_t bits) {
        Value value;
        value.type = Value::Type::real;
        std::memcpy(&value.real, &bits, sizeof bits);
        return value;
    }

    Value text(uint64_t size, Value::Type type) {
        Value value;
        value.type = type;
        value.text = read_bytes(size);
        return value;
    }

    Value array(uint64_t count, int depth) {
        Value array;
        array.type = Value::Type::array;
        for (uint64_t index = 0; index < count; ++index) array.items.push_back(value(depth + 1));
        return array;
    }

    Value map(uint64_t count, int depth) {
        Value map;
        map.type = Value::Type::map;
        for (uint64_t index = 0; index < count; ++index) {
            Value key = value(depth + 1);
            if (key.type != Value::Type::text) refuse("has a key that is no text");
            map.fields.emplace_back(std::move(key.text), value(depth + 1));
        }
        return map;
    }

    std::string_view data_;
    const char* subject_;
    size_t at_ = 0;
};

}  // namespace

MapWriter::MapWriter(std::string_view tag) { put(schema::TAG_FIELD, tag); }

void MapWriter::key(std::string_view key) {
    ++count_;
    put_text(body_, key);
}

MapWriter& MapWriter::put(std::string_view name, uint64_t value) {
    key(name);
    put_integer(body_, value);
    return *this;
}

MapWriter& MapWriter::put_bool(std::string_view name, bool value) {
    key(name);
    body_.push_back(value ? '\xc3' : '\xc2');
    return *this;
}

MapWriter& MapWriter::put(std::string_view name, std::string_view value) {
    key(name);
    put_text(body_, in_utf8(value));
    return *this;
}

MapWriter& MapWriter::put(std::string_view name, const std::vector<uint64_t>& values) {
    key(name);
    put_count(body_, values.size(), '\x90', '\xdc');
    for (const uint64_t value : values) put_integer(body_, value);
    return *this;
}

MapWriter& MapWriter::put_texts(std::string_view name, const std::vector<std::string_view>& values) {
    key(name);
    put_count(body_, values.size(), '\x90', '\xdc');
    for (const std::string_view value : values) put_text(body_, in_utf8(value));
    return *this;
}

MapWriter& MapWriter::put(std::string_view name, const MapWriter& value) {
    key(name);
    body_ += value.bytes();
    return *this;
}

MapWriter& MapWriter::put(std::string_view name, const std::vector<MapWriter>& values) {
    key(name);
    put_count(body_, values.size(), '\x90', '\xdc');
    for (const auto& value : values) body_ += value.bytes();
    return *this;
}

std::string MapWriter::bytes() const {
    std::string out;
    put_count(out, count_, '\x80', '\xde');
    return out + body_;
}

const Value* Value::find(std::string_view key) const {
    // of a key that appears twice the last counts
    for (auto field = fields.rbegin(); field != fields.rend(); ++field) {
        if (field->first == key) return &field->second;
    }
    return nullptr;
}

uint64_t Value::integer(std::string_view key, uint64_t otherwise) const {
    const Value* const value = find(key);
    return value != nullptr && value->type == Type::integer ? value->number : otherwise;
}

bool Value::flag(std::string_view key) const {
    const Value* const value = find(key);
    return value != nullptr && value->type == Type::boolean && value->number != 0;
}

std::string Value::string(std::string_view key) const {
    const Value* const value = find(key);
    return value != nullptr && (value->type == Type::text || value->type == Type::bytes) ? value->text : "";
}

const std::vector<Value>& Value::array(std::string_view key) const {
    static const auto* const none = new std::vector<Value>;
    const Value* const value = find(key);
    return value != nullptr ? value->items : *none;
}

Value unpack(std::string_view data, const char* subject) {
    Reader reader(data, subject);
    Value value = reader.value(0);
    reader.end();
    return value;
}

// ---------------------------------------------------------------- UTF-8

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

// ---------------------------------------------------------------- records

ErrorInfo decode_error_info(const Value& value) {
    using namespace schema;
    ErrorInfo info;
    info.result = static_cast<ze_result_t>(value.integer(error_info::RESULT, ZE_RESULT_ERROR_UNKNOWN));
    info.object = value.string(error_info::OBJECT);
    info.found = value.string(error_info::FOUND);
    info.expected = value.string(error_info::EXPECTED);
    info.hint = value.string(error_info::HINT);
    return info;
}

}  // namespace softnpu
