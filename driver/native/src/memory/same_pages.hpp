// Whether two mappings are the same memory. The kernel is asked: the numbers of a file do not tell it
// everywhere.
#pragma once

#include <cstdint>

namespace softnpu {

// Whether the page that this process maps at `address` is the one at `offset` of a descriptor's file. False
// also where that cannot be found out.
bool is_same_page(uint64_t address, int fd, uint64_t offset);

}  // namespace softnpu
