// A mutable command list: arguments of recorded inferences may be changed after it was closed.
#pragma once

#include "commands/list.hpp"

namespace softnpu {

// New memory of an argument, and its strides; dense without any.
struct Mutation {
    uint64_t command = 0;
    uint32_t argument = 0;
    MemoryRef memory;
    std::optional<Strides> strides;
};

class CommandListMutable : public CommandList {
public:
    using CommandList::CommandList;

    bool is_mutable() const override { return true; }
    // The id of the command that is appended next. INVALID_ARGUMENT for a closed list or other flags.
    uint64_t next_command_id(uint32_t flags);
    // Takes effect with the next submission. INVALID_ARGUMENT, and then nothing is changed.
    void update(const std::vector<Mutation>& mutations);
    void reset() override;

protected:
    void prepare_locked() override;

private:
    // The inference that the append after `id` commands recorded; its own waits come before it.
    Inference& find(uint64_t id, uint32_t argument);

    std::set<uint64_t> ids_;
    bool changed_ = false;
};

}  // namespace softnpu
