// Weights that a program names by their address in this process, as descriptors.
//
// For a read-only mapping of a file the descriptor of that file is sent. Everything else is copied once into
// a sealed memory file, because the device may use the weights long after the call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.hpp"

namespace softnpu {

// A sealed memory file with this content.
Fd sealed_copy(const char* name, const void* data, size_t size);

// `length` bytes at `address`, called `name` in errors.
struct Piece {
    std::string name;
    uint64_t address = 0;
    uint64_t length = 0;
};

// Weights in a range of a descriptor.
struct WeightFile {
    Fd fd;
    uint64_t offset = 0;
    uint64_t length = 0;
};

// Weight files, and the offset of each piece in their weights space.
struct Gathered {
    std::vector<WeightFile> files;
    std::vector<uint64_t> offsets;
};

// INVALID_ARGUMENT for a piece that is not mapped readable, by its name; nothing of any piece is read before.
// OUT_OF_HOST_MEMORY without room for the copies.
Gathered gather(const std::vector<Piece>& pieces);

}  // namespace softnpu
