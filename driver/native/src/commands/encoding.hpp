// Commands as the engine reads them: see section 11 of docs/interface.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory/block.hpp"

namespace softnpu {

constexpr size_t STRIDE_DIMS = 5;

// Something that has to stay alive while a submission may use it.
using Hold = std::shared_ptr<const void>;

// Strides of an argument in elements, innermost first, 0 for dimensions that it does not have.
struct Strides {
    uint32_t steps[STRIDE_DIMS] = {};
};

// An argument of an inference: a place, and strides if it is not dense.
struct Argument {
    Place place;
    std::optional<Strides> strides;
};

// One inference; kept apart from its bytes because its arguments may be changed later.
struct Inference {
    uint64_t graph = 0;
    uint64_t id = 0;
    std::vector<Argument> arguments;
    Place profile;  // no block: none
    Hold on_device;
};

// One recorded command: bytes and what they refer to, or an inference.
struct Command {
    bool is_wait = false;
    std::string bytes;
    std::vector<Hold> holds;
    std::optional<Inference> inference;
};

Command barrier();
Command timestamp(const Place& at);
Command event_wait(const Place& at);
Command event_signal(const Place& at);
Command event_reset(const Place& at);
Command fill(const Place& at, uint64_t size, const void* pattern, size_t pattern_size);
Command copy(const Place& target, const Place& source, uint64_t size);
Command copy_region(const Place& target, uint64_t target_pitch, const Place& source, uint64_t source_pitch,
                    uint64_t width, uint64_t rows);
Command graph_initialize(uint64_t graph, Hold on_device);
Command execute(Inference inference);

// A whole command buffer, and everything that it refers to.
struct Encoded {
    std::string bytes;
    std::vector<Hold> holds;
};
Encoded encode(const std::vector<Command>& commands);

}  // namespace softnpu
