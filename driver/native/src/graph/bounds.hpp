// The dimensions reported to programs for an argument without a largest shape.
//
// OpenVINO's plugin allocates their product before it knows any shape. So they are as large as a number of
// bytes allows, and memory of just that size is sparse: it gets pages where it is used.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "graph/meta.hpp"

namespace softnpu {

// The shape of an argument, the largest one if it has dynamic dimensions. Without a largest one: narrow
// dimensions have their bounds, what they leave is divided among the others.
std::vector<uint32_t> dimensions(const GraphMeta& graph, const ArgumentMeta& meta);

// The sizes that programs allocate for arguments without a largest shape: exact, and in whole pages.
std::set<size_t> sparse_sizes(const GraphMeta& graph);

}  // namespace softnpu
