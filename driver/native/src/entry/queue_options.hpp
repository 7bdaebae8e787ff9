// What the descriptor of a queue, and what hangs on it, asks for.
#pragma once

#include "abi/npu.hpp"
#include "commands/queue.hpp"

namespace softnpu {

// INVALID_ARGUMENT for another queue group, INVALID_ENUMERATION for modes that do not exist or exclude each
// other.
QueueOptions queue_options(const ze_command_queue_desc_t& desc);

}  // namespace softnpu
