// Large copies of client memory, by several threads.
#pragma once

#include <cstddef>

extern "C" {
// Copies `size` bytes between ranges that do not overlap; up to `threads` threads share the work. They have
// ended, and every byte is in place, when it returns.
void softnpu_copy(void* to, const void* from, std::size_t size, unsigned threads);
}
