#include "graph/bounds.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "interface/schema.hpp"

namespace softnpu {

namespace {

constexpr uint64_t DEFAULT_BYTES = 1ull << 38;
constexpr uint64_t LARGEST = INT32_MAX;

struct Range {
    uint64_t low = 0;
    uint64_t high = LARGEST;

    uint64_t width() const { return low == high ? 0 : high; }
};

// `3`, `1..8`, `..8`, `2..`, `?` as OpenVINO writes them.
Range range_of(const std::string& text) {
    Range range;
    const size_t dots = text.find("..");
    const std::string high = dots == std::string::npos ? text : text.substr(dots + 2);
    if (text != "?") range.low = std::strtoull(text.c_str(), nullptr, 10);
    if (text != "?" && !high.empty())
        range.high = std::min(LARGEST, uint64_t{std::strtoull(high.c_str(), nullptr, 10)});
    return range;
}

std::vector<Range> ranges_of(const std::string& partial_shape) {
    std::vector<Range> ranges;
    for (size_t at = 1; at < partial_shape.size();) {
        const size_t end = partial_shape.find_first_of(",]", at);
        ranges.push_back(range_of(partial_shape.substr(at, end - at)));
        at = end == std::string::npos ? end : end + 1;
    }
    return ranges;
}

uint64_t power(uint64_t base, size_t exponent) {
    uint64_t product = 1;
    while (exponent-- > 0) {
        if (__builtin_mul_overflow(product, base, &product)) return UINT64_MAX;
    }
    return product;
}

// The largest number whose power is at most `value`, at least 1.
uint64_t root(uint64_t value, size_t degree) {
    value = std::min(value, UINT64_MAX - 1);  // the powers end at UINT64_MAX
    uint64_t low = 1, high = value;
    while (low < high) {
        const uint64_t middle = high - (high - low) / 2;
        if (power(middle, degree) <= value) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

}  // namespace

std::vector<uint32_t> dimensions(const GraphMeta& graph, const ArgumentMeta& meta) {
    if (!meta.unbounded) return {meta.shape.begin(), meta.shape.end()};
    const std::vector<Range> ranges = ranges_of(meta.partial_shape);
    std::vector<size_t> order(ranges.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t one, size_t other) { return ranges[one].width() < ranges[other].width(); });
    uint64_t room =
        (graph.unbounded_bytes == 0 ? DEFAULT_BYTES : graph.unbounded_bytes) / meta.element_size();
    std::vector<uint32_t> dims(ranges.size());
    for (size_t done = 0; done < order.size(); ++done) {
        const Range& range = ranges[order[done]];
        const uint64_t dim = std::max(range.low, std::min(range.high, root(room, order.size() - done)));
        dims[order[done]] = static_cast<uint32_t>(dim);
        room /= std::max<uint64_t>(1, dim);
    }
    return dims;
}

std::set<size_t> sparse_sizes(const GraphMeta& graph) {
    std::set<size_t> sizes;
    for (const ArgumentMeta& meta : graph.arguments) {
        if (!meta.unbounded) continue;
        uint64_t size = meta.element_size();
        for (const uint32_t dim : dimensions(graph, meta)) size *= dim;
        sizes.insert(size);
        sizes.insert((size + schema::blob::PAGE - 1) / schema::blob::PAGE * schema::blob::PAGE);
    }
    return sizes;
}

}  // namespace softnpu
