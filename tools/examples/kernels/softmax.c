/* Softmax of f32 over any axis. */
#include "softnpu_kernel.h"
#include "softnpu_math.h"

SOFTNPU_KERNEL({
    "abi": 1,
    "domain": "softnpu.examples",
    "name": "Softmax",
    "inputs": ["x"],
    "outputs": ["y"],
    "implementations": [{"inputs": ["f32"], "outputs": ["f32"], "run": "softmax"}],
    "attributes": [{"name": "axis", "kind": "integer", "default": -1}]
});

enum { AXIS }; /* of the attributes */

SOFTNPU_EXPORT(softnpu_shapes) int32_t softnpu_shapes(softnpu_call *call) {
    int64_t axis = softnpu_integer(call, AXIS), rank = call->inputs[0].rank;
    if (axis < -rank || axis >= rank) return softnpu_fail(call, "attribute axis: outside of the input's rank");
    softnpu_same_shape(call, 0, 0);
    return 0;
}

SOFTNPU_EXPORT(softnpu_split) int32_t softnpu_split(softnpu_call *call) {
    int64_t axis = softnpu_integer(call, AXIS);
    if (axis < 0) axis += call->inputs[0].rank;
    return axis > softnpu_outer_axis(&call->inputs[0]); /* not within a row */
}

/* One row of contiguous elements: whole vectors, then the rest. */
static void row(const float *x, float *y, int64_t count) {
    int64_t whole = count / 4 * 4, rest = count - whole;
    v128_t end = rest ? softnpu_load(x + whole, rest, -__builtin_inff()) : wasm_f32x4_splat(-__builtin_inff());
    v128_t most = end;
    for (int64_t i = 0; i < whole; i += 4) most = wasm_f32x4_max(most, wasm_v128_load(x + i));
    float lanes[4], largest = -__builtin_inff();
    wasm_v128_store(lanes, most);
    for (int lane = 0; lane < 4; lane++) largest = lanes[lane] <= largest ? largest : lanes[lane];
    v128_t offset = wasm_f32x4_splat(largest), sum = end = softnpu_exp(wasm_f32x4_sub(end, offset));
    for (int64_t i = 0; i < whole; i += 4) {
        v128_t e = softnpu_exp(wasm_f32x4_sub(wasm_v128_load(x + i), offset));
        wasm_v128_store(y + i, e);
        sum = wasm_f32x4_add(sum, e);
    }
    wasm_v128_store(lanes, sum);
    v128_t factor = wasm_f32x4_splat(1.0f / (lanes[0] + lanes[1] + lanes[2] + lanes[3]));
    for (int64_t i = 0; i < whole; i += 4) wasm_v128_store(y + i, wasm_f32x4_mul(wasm_v128_load(y + i), factor));
    if (rest) softnpu_store(y + whole, rest, wasm_f32x4_mul(end, factor));
}

/* Up to four columns beside each other, `step` elements from one row to the next. */
static void columns(const float *x, float *y, int64_t count, int64_t step, int64_t width) {
    v128_t most = wasm_f32x4_splat(-__builtin_inff()), sum = wasm_f32x4_splat(0);
    for (int64_t i = 0; i < count; i++) most = wasm_f32x4_max(most, softnpu_load(x + i * step, width, 0));
    for (int64_t i = 0; i < count; i++) {
        v128_t e = softnpu_exp(wasm_f32x4_sub(softnpu_load(x + i * step, width, 0), most));
        softnpu_store(y + i * step, width, e);
        sum = wasm_f32x4_add(sum, e);
    }
    v128_t factor = wasm_f32x4_div(wasm_f32x4_splat(1), sum);
    for (int64_t i = 0; i < count; i++)
        softnpu_store(y + i * step, width, wasm_f32x4_mul(softnpu_load(y + i * step, width, 0), factor));
}

SOFTNPU_EXPORT(softmax) int32_t softmax(softnpu_call *call) {
    const softnpu_tensor *input = &call->inputs[0];
    int64_t axis = softnpu_integer(call, AXIS);
    if (axis < 0) axis += input->rank;
    int64_t outer = softnpu_product(input, 0, (uint32_t)axis), count = input->shape[axis];
    int64_t inner = softnpu_product(input, (uint32_t)axis + 1, input->rank);
    const float *x = input->data;
    float *y = call->outputs[0].data;
    for (int64_t o = 0; o < outer; o++, x += count * inner, y += count * inner) {
        if (inner == 1) {
            row(x, y, count);
            continue;
        }
        for (int64_t i = 0; i < inner; i += 4) columns(x + i, y + i, count, inner, inner - i);
    }
    return 0;
}
