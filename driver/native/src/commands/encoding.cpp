#include "commands/encoding.hpp"

#include <cstring>

namespace softnpu {

namespace {

enum Type : uint16_t {
    TIMESTAMP = 0x100,
    EVENT_WAIT = 0x101,
    EVENT_SIGNAL = 0x102,
    BARRIER = 0x103,
    EVENT_RESET = 0x104,
    MEMORY_FILL = 0x202,
    COPY = 0x302,
    COPY_REGION = 0x303,
    GRAPH_INITIALIZE = 0x305,
    GRAPH_EXECUTE = 0x306,
};

constexpr size_t HEADER_SIZE = 32;
constexpr size_t EXECUTE_SIZE = 48;

template <class T>
void put(std::string& out, T value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);  // little-endian, as the machine is
    out.append(bytes, sizeof value);
}

std::string head(Type type, uint32_t size) {
    std::string out;
    put<uint16_t>(out, type);
    put<uint16_t>(out, 0);
    put<uint32_t>(out, size);
    return out;
}

void put_place(std::string& out, const Place& at) {
    put<uint64_t>(out, at.block->handle);
    put<uint64_t>(out, at.offset);
}

Command at_command(Type type, const Place& at) {
    Command made;
    made.bytes = head(type, 24);
    put_place(made.bytes, at);
    made.holds.push_back(at.block);
    return made;
}

void encode_inference(std::string& out, const Inference& inference) {
    uint32_t strided = 0;
    for (const auto& argument : inference.arguments) strided += argument.strides.has_value();
    const auto count = static_cast<uint32_t>(inference.arguments.size());
    out += head(GRAPH_EXECUTE, static_cast<uint32_t>(EXECUTE_SIZE + 16 * count + 24 * strided));
    put<uint64_t>(out, inference.graph);
    put<uint64_t>(out, inference.id);
    put<uint32_t>(out, count);
    put<uint32_t>(out, strided);
    put<uint64_t>(out, inference.profile.block == nullptr ? 0 : inference.profile.block->handle);
    put<uint64_t>(out, inference.profile.offset);
    for (const auto& argument : inference.arguments) put_place(out, argument.place);
    for (uint32_t index = 0; index < count; ++index) {
        const auto& strides = inference.arguments[index].strides;
        if (!strides) continue;
        put<uint32_t>(out, index);
        for (const uint32_t step : strides->steps) put<uint32_t>(out, step);
    }
}

}  // namespace

Command barrier() {
    Command made;
    made.bytes = head(BARRIER, 8);
    return made;
}

Command timestamp(const Place& at) { return at_command(TIMESTAMP, at); }

Command event_wait(const Place& at) {
    Command made = at_command(EVENT_WAIT, at);
    made.is_wait = true;
    return made;
}

Command event_signal(const Place& at) { return at_command(EVENT_SIGNAL, at); }

Command event_reset(const Place& at) { return at_command(EVENT_RESET, at); }

Command fill(const Place& at, uint64_t size, const void* pattern, size_t pattern_size) {
    Command made;
    made.bytes = head(MEMORY_FILL, 48);
    put_place(made.bytes, at);
    put<uint64_t>(made.bytes, size);
    char padded[8] = {};
    std::memcpy(padded, pattern, pattern_size);
    made.bytes.append(padded, sizeof padded);
    put<uint32_t>(made.bytes, static_cast<uint32_t>(pattern_size));
    put<uint32_t>(made.bytes, 0);
    made.holds.push_back(at.block);
    return made;
}

Command copy(const Place& target, const Place& source, uint64_t size) {
    Command made;
    made.bytes = head(COPY, 48);
    put_place(made.bytes, target);
    put_place(made.bytes, source);
    put<uint64_t>(made.bytes, size);
    made.holds = {target.block, source.block};
    return made;
}

Command copy_region(const Place& target, uint64_t target_pitch, const Place& source, uint64_t source_pitch,
                    uint64_t width, uint64_t rows) {
    Command made;
    made.bytes = head(COPY_REGION, 72);
    put_place(made.bytes, target);
    put<uint64_t>(made.bytes, target_pitch);
    put_place(made.bytes, source);
    put<uint64_t>(made.bytes, source_pitch);
    put<uint64_t>(made.bytes, width);
    put<uint64_t>(made.bytes, rows);
    made.holds = {target.block, source.block};
    return made;
}

Command graph_initialize(uint64_t graph, Hold on_device) {
    Command made;
    made.bytes = head(GRAPH_INITIALIZE, 16);
    put<uint64_t>(made.bytes, graph);
    made.holds.push_back(std::move(on_device));
    return made;
}

Command execute(Inference inference) {
    Command made;
    made.inference = std::move(inference);
    return made;
}

Encoded encode(const std::vector<Command>& commands) {
    Encoded encoded;
    encoded.bytes.assign(HEADER_SIZE, '\0');
    for (const auto& command : commands) {
        encoded.holds.insert(encoded.holds.end(), command.holds.begin(), command.holds.end());
        if (!command.inference) {
            encoded.bytes += command.bytes;
            continue;
        }
        encode_inference(encoded.bytes, *command.inference);
        encoded.holds.push_back(command.inference->on_device);
        encoded.holds.push_back(command.inference->profile.block);
        for (const auto& argument : command.inference->arguments)
            encoded.holds.push_back(argument.place.block);
    }
    std::string header = "SNPC";
    put<uint16_t>(header, 1);
    put<uint16_t>(header, 0);
    put<uint32_t>(header, static_cast<uint32_t>(encoded.bytes.size()));
    put<uint32_t>(header, static_cast<uint32_t>(commands.size()));
    encoded.bytes.replace(0, header.size(), header);
    return encoded;
}

}  // namespace softnpu
