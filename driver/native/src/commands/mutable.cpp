#include "commands/mutable.hpp"

namespace softnpu {

uint64_t CommandListMutable::next_command_id(uint32_t flags) {
    std::lock_guard lock(mutex_);
    const bool known = flags == ZE_MUTABLE_COMMAND_EXP_FLAG_GRAPH_ARGUMENTS ||
                       flags == ZE_MUTABLE_COMMAND_EXP_FLAG_GRAPH_ARGUMENT_DEPRECATED;
    if (closed_ || !known) {
        throw invalid_argument("command list", format("%s, flags %#x", closed_ ? "closed" : "open", flags),
                               format("an open list and the flag GRAPH_ARGUMENTS (%#x)",
                                      ZE_MUTABLE_COMMAND_EXP_FLAG_GRAPH_ARGUMENTS));
    }
    ids_.insert(commands_.size());
    return commands_.size();
}

void CommandListMutable::update(const std::vector<Mutation>& mutations) {
    std::lock_guard lock(mutex_);
    if (!closed_ || mutations.empty()) {
        throw invalid_argument(
            "mutation",
            format("%zu changes of a list that is %s", mutations.size(), closed_ ? "closed" : "open"),
            "at least one change of a closed list");
    }
    for (const auto& mutation : mutations) find(mutation.command, mutation.argument);
    for (const auto& mutation : mutations) {
        find(mutation.command, mutation.argument).arguments[mutation.argument] = {mutation.memory,
                                                                                  mutation.strides};
    }
    changed_ = true;
}

void CommandListMutable::reset() {
    {
        std::lock_guard lock(mutex_);
        ids_.clear();
        changed_ = false;
    }
    CommandList::reset();
}

void CommandListMutable::prepare_locked() {
    if (!changed_) return;
    encode_locked();
    changed_ = false;
}

Inference& CommandListMutable::find(uint64_t id, uint32_t argument) {
    if (ids_.count(id) != 0) {
        for (size_t at = id; at < commands_.size(); ++at) {
            if (commands_[at].inference) {
                if (argument < commands_[at].inference->arguments.size()) return *commands_[at].inference;
                break;
            }
            if (!commands_[at].is_wait) break;
        }
    }
    throw invalid_argument(format("command id %lu, argument %u", id, argument), "not known of this list",
                           "an id from zeCommandListGetNextCommandIdExp, and an argument of its graph");
}

}  // namespace softnpu
