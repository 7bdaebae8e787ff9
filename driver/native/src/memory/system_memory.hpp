// Memory of this process that the device can use where it is: shared mappings of files in shared memory.
//
// Another process cannot reach private pages, and a page of a file on a disk may take any time.
#pragma once

#include <memory>

#include "memory/pool.hpp"

namespace softnpu {

// The memory as a block of this pool; the program keeps it mapped. INVALID_NULL_POINTER, UNSUPPORTED_SIZE for
// none, INVALID_ARGUMENT for parts of pages and for what the pool has, UNSUPPORTED_FEATURE for any other
// memory: it has to be copied.
std::shared_ptr<Block> import_system_memory(MemoryPool& pool, void* address, size_t size);

}  // namespace softnpu
