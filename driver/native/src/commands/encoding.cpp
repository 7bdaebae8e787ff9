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

void put_ref(std::string& out, const MemoryRef& at) {
    put<uint64_t>(out, at.block->handle);
    put<uint64_t>(out, at.offset);
}

Command at_command(Type type, const MemoryRef& at) {
    Command made;
    made.bytes = head(type, 24);
    put_ref(made.bytes, at);
    made.keep_alive.push_back(at.block);
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
    for (const auto& argument : inference.arguments) put_ref(out, argument.memory);
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

Command timestamp(const MemoryRef& at) { return at_command(TIMESTAMP, at); }

Command event_wait(const MemoryRef& at) {
    Command made = at_command(EVENT_WAIT, at);
    made.is_wait = true;
    return made;
}

Command event_signal(const MemoryRef& at) { return at_command(EVENT_SIGNAL, at); }

Command event_reset(const MemoryRef& at) { return at_command(EVENT_RESET, at); }

Command fill(const MemoryRef& at, uint64_t size, const void* pattern, size_t pattern_size) {
    Command made;
    made.bytes = head(MEMORY_FILL, 48);
    put_ref(made.bytes, at);
    put<uint64_t>(made.bytes, size);
    char padded[8] = {};
    std::memcpy(padded, pattern, pattern_size);
    made.bytes.append(padded, sizeof padded);
    put<uint32_t>(made.bytes, static_cast<uint32_t>(pattern_size));
    put<uint32_t>(made.bytes, 0);
    made.keep_alive.push_back(at.block);
    return made;
}

Command copy(const MemoryRef& target, const MemoryRef& source, uint64_t size) {
    Command made;
    made.bytes = head(COPY, 48);
    put_ref(made.bytes, target);
    put_ref(made.bytes, source);
    put<uint64_t>(made.bytes, size);
    made.keep_alive = {target.block, source.block};
    return made;
}

Command copy_region(const MemoryRef& target, uint64_t target_pitch, const MemoryRef& source,
                    uint64_t source_pitch, uint64_t width, uint64_t rows) {
    Command made;
    made.bytes = head(COPY_REGION, 72);
    put_ref(made.bytes, target);
    put<uint64_t>(made.bytes, target_pitch);
    put_ref(made.bytes, source);
    put<uint64_t>(made.bytes, source_pitch);
    put<uint64_t>(made.bytes, width);
    put<uint64_t>(made.bytes, rows);
    made.keep_alive = {target.block, source.block};
    return made;
}

Command graph_initialize(uint64_t graph, KeepAlive on_device) {
    Command made;
    made.bytes = head(GRAPH_INITIALIZE, 16);
    put<uint64_t>(made.bytes, graph);
    made.keep_alive.push_back(std::move(on_device));
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
        encoded.keep_alive.insert(encoded.keep_alive.end(), command.keep_alive.begin(),
                                  command.keep_alive.end());
        if (!command.inference) {
            encoded.bytes += command.bytes;
            continue;
        }
        encode_inference(encoded.bytes, *command.inference);
        encoded.keep_alive.push_back(command.inference->on_device);
        encoded.keep_alive.push_back(command.inference->profile.block);
        for (const auto& argument : command.inference->arguments)
            encoded.keep_alive.push_back(argument.memory.block);
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
