// Commands as the engine reads them: see section 11 of docs/interface.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "interface/schema.hpp"
#include "memory/pool.hpp"
#include "session/check.hpp"

namespace softnpu {

// Keeps an object alive while a submission may use it.
using KeepAlive = std::shared_ptr<const void>;

// An argument's strides in elements, innermost first; 0 for each dimension that it lacks.
struct Strides {
    uint32_t steps[schema::command_buffer::STRIDE_DIMS] = {};
};

// An argument of an inference: memory, and strides if it is not dense.
struct Argument {
    MemoryRef memory;
    std::optional<Strides> strides;
};

// One inference; kept apart from its bytes because its arguments may be changed later.
struct Inference {
    uint64_t graph = 0;
    uint64_t id = 0;
    std::vector<Argument> arguments;
    size_t inputs = 0;  // the first arguments
    MemoryRef profile;  // may be empty
    KeepAlive on_device;
};

// One recorded command: bytes and what they refer to, or an inference.
struct Command {
    bool is_wait = false;
    std::string bytes;
    std::vector<KeepAlive> keep_alive;
    std::optional<Inference> inference;
};

Command barrier();
Command timestamp(const MemoryRef& at);
Command event_wait(const MemoryRef& at);
Command event_signal(const MemoryRef& at);
Command event_reset(const MemoryRef& at);
Command metric_snapshot(const MemoryRef& at);
Command fill(const MemoryRef& at, uint64_t size, const void* pattern, size_t pattern_size);
Command copy(const MemoryRef& target, const MemoryRef& source, uint64_t size);
Command copy_region(const MemoryRef& target, uint64_t target_pitch, const MemoryRef& source,
                    uint64_t source_pitch, uint64_t width, uint64_t rows);
Command graph_initialize(uint64_t graph, KeepAlive on_device);
Command execute(Inference inference);

// The memory that commands read or write, by its address.
std::vector<std::pair<const uint8_t*, check::Denied>> uses_of(const std::vector<Command>& commands);

// The commands that signal events.
std::vector<check::Signal> signals_of(const std::vector<Command>& commands);
// Notes what passes the end of its memory, if it is a copy.
void note_bounds(const Command& command);

// A whole command buffer, and everything that it refers to.
struct Encoded {
    std::string bytes;
    std::vector<KeepAlive> keep_alive;
};
Encoded encode(const std::vector<Command>& commands);

}  // namespace softnpu
