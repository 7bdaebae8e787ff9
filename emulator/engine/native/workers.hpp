// Short inferences without oneTBB's workers.
//
// A C model runs with the threads of its image, as their number decides how OpenVINO divides its work, and so
// its bits. But a worker takes longer to begin its part than a short inference takes, and waits for the next
// without sleep, on the core that the client needs. While C++ runs short inferences one after the other, this
// thread does all parts alone, and the workers sleep. The division stays the same: it follows from the size
// of OpenVINO's arena, not from who works in it.
#pragma once

#include <cstdint>

namespace softnpu::engine::workers {

// To be called before and after inferences of one image, each of which took `ns`. After some short ones in a
// row, not slower without the workers by more than the part of one, these sleep; an image that has often run
// so wakes them.
void begins(const void* image);
void ran(const void* image, uint64_t ns);
// Lets the workers work again: anything else may run after that.
void wake();

}  // namespace softnpu::engine::workers

extern "C" {
// Between the two calls, of any thread, the workers stay awake: that thread computes meanwhile.
void softnpu_workers_take();
void softnpu_workers_give();
// The others, for tests.
void softnpu_workers_begins(const void* image);
void softnpu_workers_ran(const void* image, uint64_t ns);
void softnpu_workers_wake();
}
