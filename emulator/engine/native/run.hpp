// One submission that is known: it begins, its steps run, it ends.
#pragma once

#include "turns.hpp"

namespace softnpu::engine {

uint64_t now_ns();

// Runs the next submission of a queue to its end; false, with `why`, if Python has to run it, from
// `queue.step` on.
bool run_next(Turns& turns, Queue& queue, Why& why);

}  // namespace softnpu::engine
