// Memory of other programs whose size is not sealed: files of shm_open and memfd_create. The engine is
// guarded against a cut; a program that touches what is gone ends with SIGBUS, as with any such mapping.
#pragma once

#include <memory>
#include <string_view>

#include "memory/pool.hpp"

namespace softnpu {

// Whether it is a file in shared memory, of huge pages not.
bool is_shared_memory(int fd);
// Whether seals keep its size.
bool has_fixed_size(int fd);
// All of a file that others can cut. INVALID_ARGUMENT for an empty file, and for one that cannot be written.
std::shared_ptr<Block> import_foreign_file(MemoryPool& pool, int fd, std::string_view kind);

}  // namespace softnpu
