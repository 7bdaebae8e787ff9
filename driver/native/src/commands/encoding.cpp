#include "commands/encoding.hpp"

#include <algorithm>
#include <cstring>

namespace softnpu {

using namespace schema;

namespace {

template <class T>
void append(std::string& out, const T& record) {
    out.append(reinterpret_cast<const char*>(&record), sizeof record);
}

Ref ref_to(const MemoryRef& memory) {
    return memory.block == nullptr ? Ref{0, 0} : Ref{memory.block->handle, memory.offset};
}

template <class T>
Command command_of(const T& record, std::vector<KeepAlive> keep_alive) {
    Command command;
    append(command.bytes, record);
    command.keep_alive = std::move(keep_alive);
    return command;
}

Command at_command(uint16_t type, const MemoryRef& at) {
    return command_of(AtCommand{type, 0, sizeof(AtCommand), ref_to(at)}, {at.block});
}

void append_inference(std::string& out, const Inference& inference) {
    uint32_t strided = 0;
    for (const auto& argument : inference.arguments) strided += argument.strides.has_value();
    const auto count = static_cast<uint32_t>(inference.arguments.size());
    const size_t size = sizeof(ExecuteCommand) + sizeof(Ref) * count + sizeof(StridesEntry) * strided;
    append(out, ExecuteCommand{command_type::GRAPH_EXECUTE, 0, static_cast<uint32_t>(size), inference.graph,
                               inference.id, count, strided, ref_to(inference.profile)});
    for (const auto& argument : inference.arguments) append(out, ref_to(argument.memory));
    for (uint32_t index = 0; index < count; ++index) {
        const auto& strides = inference.arguments[index].strides;
        if (!strides) continue;
        append(out, index);
        append(out, strides->steps);
    }
}

}  // namespace

Command barrier() { return command_of(CommandHead{command_type::BARRIER, 0, sizeof(CommandHead)}, {}); }

Command timestamp(const MemoryRef& at) { return at_command(command_type::TIMESTAMP, at); }

Command event_wait(const MemoryRef& at) {
    Command command = at_command(command_type::EVENT_WAIT, at);
    command.is_wait = true;
    return command;
}

Command event_signal(const MemoryRef& at) { return at_command(command_type::EVENT_SIGNAL, at); }

Command event_reset(const MemoryRef& at) { return at_command(command_type::EVENT_RESET, at); }

Command metric_snapshot(const MemoryRef& at) { return at_command(command_type::METRIC_SNAPSHOT, at); }

Command fill(const MemoryRef& at, uint64_t size, const void* pattern, size_t pattern_size) {
    FillCommand record{command_type::MEMORY_FILL,           0, sizeof record, ref_to(at), size, {},
                       static_cast<uint32_t>(pattern_size), {}};
    std::memcpy(record.pattern, pattern, pattern_size);
    return command_of(record, {at.block});
}

Command copy(const MemoryRef& target, const MemoryRef& source, uint64_t size) {
    return command_of(
        CopyCommand{command_type::COPY, 0, sizeof(CopyCommand), ref_to(target), ref_to(source), size},
        {target.block, source.block});
}

Command copy_region(const MemoryRef& target, uint64_t target_pitch, const MemoryRef& source,
                    uint64_t source_pitch, uint64_t width, uint64_t rows) {
    return command_of(
        CopyRegionCommand{command_type::COPY_REGION, 0, sizeof(CopyRegionCommand), ref_to(target),
                          target_pitch, ref_to(source), source_pitch, width, rows},
        {target.block, source.block});
}

Command graph_initialize(uint64_t graph, KeepAlive on_device) {
    return command_of(GraphCommand{command_type::GRAPH_INITIALIZE, 0, sizeof(GraphCommand), graph},
                      {std::move(on_device)});
}

Command execute(Inference inference) {
    Command command;
    command.inference = std::move(inference);
    return command;
}

std::vector<std::pair<const uint8_t*, check::Denied>> uses_of(const std::vector<Command>& commands) {
    std::vector<std::pair<const uint8_t*, check::Denied>> uses;
    const auto data = [](const KeepAlive& block) { return static_cast<const Block*>(block.get())->data(); };
    for (const auto& command : commands) {
        if (command.inference) {
            const auto& arguments = command.inference->arguments;
            for (size_t index = 0; index < arguments.size(); ++index) {
                const auto denied = index < command.inference->inputs ? check::WRITING : check::EVERYTHING;
                uses.emplace_back(arguments[index].memory.block->data(), denied);
            }
            continue;
        }
        CommandHead head{};
        std::memcpy(&head, command.bytes.data(), sizeof head);
        switch (head.type) {
            case command_type::COPY:
            case command_type::COPY_REGION:
                uses.emplace_back(data(command.keep_alive[1]), check::WRITING);
                [[fallthrough]];
            case command_type::MEMORY_FILL:
            case command_type::TIMESTAMP: uses.emplace_back(data(command.keep_alive[0]), check::EVERYTHING);
        }
    }
    return uses;
}

std::vector<check::Signal> signals_of(const std::vector<Command>& commands) {
    std::vector<check::Signal> signals;
    for (size_t index = 0; index < commands.size(); ++index) {
        AtCommand at{};
        if (commands[index].bytes.size() != sizeof at) continue;
        std::memcpy(&at, commands[index].bytes.data(), sizeof at);
        if (at.type == command_type::EVENT_SIGNAL) signals.push_back({index, at.at.memory, at.at.offset});
    }
    return signals;
}

void note_bounds(const Command& command) {
    CommandHead head{};
    std::memcpy(&head, command.bytes.data(), std::min(command.bytes.size(), sizeof head));
    const auto look = [&](size_t which, uint64_t offset, uint64_t length) {
        const Block& block = *static_cast<const Block*>(command.keep_alive[which].get());
        if (length > block.size - std::min(offset, block.size))
            check::out_of_bounds(block.handle, offset, offset + length, block.size, which == 0);
    };
    if (head.type == command_type::COPY) {
        CopyCommand copy{};
        std::memcpy(&copy, command.bytes.data(), sizeof copy);
        look(1, copy.source.offset, copy.length);
        look(0, copy.target.offset, copy.length);
    } else if (head.type == command_type::COPY_REGION) {
        CopyRegionCommand copy{};
        std::memcpy(&copy, command.bytes.data(), sizeof copy);
        const auto length = [&](uint64_t pitch) { return pitch * (copy.rows - 1) + copy.width; };
        look(1, copy.source.offset, length(copy.source_pitch));
        look(0, copy.target.offset, length(copy.target_pitch));
    }
}

Encoded encode(const std::vector<Command>& commands) {
    Encoded encoded;
    encoded.bytes.assign(sizeof(CommandBufferHeader), '\0');
    for (const auto& command : commands) {
        encoded.keep_alive.insert(encoded.keep_alive.end(), command.keep_alive.begin(),
                                  command.keep_alive.end());
        if (!command.inference) {
            encoded.bytes += command.bytes;
            continue;
        }
        append_inference(encoded.bytes, *command.inference);
        encoded.keep_alive.push_back(command.inference->on_device);
        encoded.keep_alive.push_back(command.inference->profile.block);
        for (const auto& argument : command.inference->arguments)
            encoded.keep_alive.push_back(argument.memory.block);
    }
    CommandBufferHeader header{
        {}, 1, 0, static_cast<uint32_t>(encoded.bytes.size()), static_cast<uint32_t>(commands.size()), {}};
    command_buffer::MAGIC.copy(header.magic, sizeof header.magic);
    std::memcpy(encoded.bytes.data(), &header, sizeof header);
    return encoded;
}

}  // namespace softnpu
