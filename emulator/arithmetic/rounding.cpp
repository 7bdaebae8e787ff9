// The operation DeviceRound: every element of a tensor of floats becomes the nearest f16, as a float.
//
// An extension of OpenVINO, built against the headers of the OpenVINO that loads it (library.py). It is an operation
// of its own because OpenVINO removes a conversion to f16 and back, and would change arithmetic that does the same.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/core/parallel.hpp>
#include <openvino/op/op.hpp>

namespace {

constexpr float LARGEST = 65504.0f;              // of f16
constexpr float OVERFLOW_FROM = 65520.0f;        // the tie between it and 2^16, which is even
constexpr uint32_t SMALLEST_NORMAL = 0x38800000;  // 2^-14
constexpr int64_t PART = 1 << 14;                // elements that are worth a thread

struct Found {
    float largest = 0;  // of the finite ones, before they are rounded
    uint64_t overflows = 0;
    uint64_t underflows = 0;  // to zero
    uint64_t nans = 0;
};

struct Counters {
    std::mutex mutex;
    Found found;
};

// A counter is never removed: its number may be in a compiled model.
std::mutex counters_mutex;
std::deque<Counters> counters;

Counters* counters_of(int64_t number) {
    if (number < 0) return nullptr;
    std::lock_guard<std::mutex> guard(counters_mutex);
    if (size_t(number) >= counters.size()) counters.resize(size_t(number) + 1);
    return &counters[size_t(number)];
}

float rounded(float value, bool saturate) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits & 0x80000000;
    uint32_t magnitude = bits ^ sign;
    if (magnitude > 0x7f800000) {
        magnitude = (magnitude | 0x400000) & ~0x1fffu;  // quiet, with what fits of its payload
    } else if (std::fabs(value) >= OVERFLOW_FROM) {
        const float end = saturate ? LARGEST : INFINITY;
        std::memcpy(&magnitude, &end, sizeof end);
    } else if (magnitude < SMALLEST_NORMAL) {
        // the last bit of a float from 0.5 to 1 is 2^-24, the step of the subnormals
        volatile float shifted = std::fabs(value) + 0.5f;
        const float back = shifted - 0.5f;
        std::memcpy(&magnitude, &back, sizeof back);
    } else {
        magnitude = (magnitude + 0xfff + ((magnitude >> 13) & 1)) & ~0x1fffu;
    }
    bits = sign | magnitude;
    std::memcpy(&value, &bits, sizeof bits);
    return value;
}

void round_portably(const float* from, float* to, int64_t count, bool saturate) {
    for (int64_t i = 0; i < count; ++i) to[i] = rounded(from[i], saturate);
}

__attribute__((target("avx,f16c"))) void round_with_f16c(const float* from, float* to, int64_t count, bool saturate) {
    const __m256 limit = _mm256_set1_ps(saturate ? LARGEST : INFINITY);
    const __m256 negative = _mm256_set1_ps(saturate ? -LARGEST : -INFINITY);
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        // of an operand that is no number the second one is taken
        const __m256 value = _mm256_max_ps(negative, _mm256_min_ps(limit, _mm256_loadu_ps(from + i)));
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT)));
    }
    round_portably(from + i, to + i, count - i, saturate);
}

Found look(const float* from, int64_t count) {
    Found found;
    for (int64_t i = 0; i < count; ++i) {
        const float magnitude = std::fabs(from[i]);
        if (std::isnan(magnitude)) {
            ++found.nans;
            continue;
        }
        found.overflows += magnitude >= OVERFLOW_FROM;
        found.underflows += magnitude != 0 && magnitude <= 0x1p-25f;
        if (magnitude < INFINITY) found.largest = std::max(found.largest, magnitude);
    }
    return found;
}

using Rounding = void (*)(const float*, float*, int64_t, bool);

Rounding fastest() {
    static const Rounding chosen = __builtin_cpu_supports("f16c") ? round_with_f16c : round_portably;
    return chosen;
}

class DeviceRound : public ov::op::Op {
public:
    OPENVINO_OP("DeviceRound", "softnpu");

    DeviceRound() = default;

    DeviceRound(const ov::Output<ov::Node>& value, bool saturate, int64_t counter)
        : Op({value}), saturate_(saturate), counter_(counter) {
        constructor_validate_and_infer_types();
    }

    void validate_and_infer_types() override {
        set_output_type(0, get_input_element_type(0), get_input_partial_shape(0));
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        return std::make_shared<DeviceRound>(inputs.at(0), saturate_, counter_);
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("saturate", saturate_);
        visitor.on_attribute("counter", counter_);
        return true;
    }

    bool has_evaluate() const override { return true; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        const ov::Tensor& input = inputs[0];
        outputs[0].set_shape(input.get_shape());
        if (input.get_element_type() == ov::element::f32) {
            round(input.data<const float>(), outputs[0].data<float>(), int64_t(input.get_size()));
            return true;
        }
        if (input.get_element_type() == ov::element::f16) {  // of a constant: the CPU device computes in f32
            std::memcpy(outputs[0].data(), input.data(), input.get_byte_size());
            return true;
        }
        return false;
    }

private:
    void round(const float* from, float* to, int64_t count) const {
        Counters* const counter = counters_of(counter_);
        const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(parallel_get_max_threads(), count / PART));
        ov::parallel_for(parts, [&](int64_t part) {
            const int64_t begin = count * part / parts, size = count * (part + 1) / parts - begin;
            if (counter != nullptr) {
                const Found found = look(from + begin, size);
                std::lock_guard<std::mutex> guard(counter->mutex);
                counter->found.largest = std::max(counter->found.largest, found.largest);
                counter->found.overflows += found.overflows;
                counter->found.underflows += found.underflows;
                counter->found.nans += found.nans;
            }
            fastest()(from + begin, to + begin, size, saturate_);
        });
    }

    bool saturate_ = true;
    int64_t counter_ = -1;
};

}  // namespace

OPENVINO_CREATE_EXTENSIONS(
    std::vector<ov::Extension::Ptr>({std::make_shared<ov::OpExtension<DeviceRound>>()}));

// Round `count` floats, with or without the instructions of the processor for it; for tests.
extern "C" __attribute__((visibility("default"))) void softnpu_round(const float* from, float* to, int64_t count, bool saturate, bool portably) {
    (portably ? round_portably : fastest())(from, to, count, saturate);
}

// Take what a counter has found since the last call: largest finite value, overflows, underflows to zero, NaN.
extern "C" __attribute__((visibility("default"))) void softnpu_take_counter(int64_t number, float* largest, uint64_t* counts) {
    Counters* const counter = counters_of(number);
    std::lock_guard<std::mutex> guard(counter->mutex);
    *largest = counter->found.largest;
    counts[0] = counter->found.overflows;
    counts[1] = counter->found.underflows;
    counts[2] = counter->found.nans;
    counter->found = Found();
}
