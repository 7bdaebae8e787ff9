/* GELU, exactly: x / 2 * (1 + erf(x / sqrt(2))), of f32 and f16. */
#include "softnpu_kernel.h"
#include "softnpu_math.h"

SOFTNPU_KERNEL({
    "abi": 1,
    "domain": "softnpu.examples",
    "name": "Gelu",
    "inputs": ["x"],
    "outputs": ["y"],
    "implementations": [
        {"inputs": ["f32"], "outputs": ["f32"], "run": "gelu_f32"},
        {"inputs": ["f16"], "outputs": ["f16"], "run": "gelu_f16"}
    ],
    "attributes": [{"name": "approximation_mode", "kind": "text", "default": "ERF"}]
});

SOFTNPU_EXPORT(softnpu_shapes) int32_t softnpu_shapes(softnpu_call *call) {
    /* OpenVINO's own Gelu has two modes */
    if (softnpu_text(call, 0)[0] != 'E') return softnpu_fail(call, "attribute approximation_mode: not ERF");
    softnpu_same_shape(call, 0, 0);
    return 0;
}

SOFTNPU_EXPORT(softnpu_split) int32_t softnpu_split(softnpu_call *call) {
    (void)call;
    return 1; /* input 0 is cut as the output is: each element is on its own */
}

static v128_t gelu(v128_t x) {
    v128_t half = wasm_f32x4_mul(x, wasm_f32x4_splat(0.5f));
    v128_t erf = softnpu_erf(wasm_f32x4_mul(x, wasm_f32x4_splat(0.70710678f)));
    return wasm_f32x4_relaxed_madd(half, erf, half);
}

SOFTNPU_EXPORT(gelu_f32) int32_t gelu_f32(softnpu_call *call) {
    const float *x = call->inputs[0].data;
    float *y = call->outputs[0].data;
    int64_t i = 0, end = softnpu_elements(&call->inputs[0]);
    for (; i + 8 <= end; i += 8) {
        wasm_v128_store(y + i, gelu(wasm_v128_load(x + i)));
        wasm_v128_store(y + i + 4, gelu(wasm_v128_load(x + i + 4)));
    }
    for (; i < end; i += 4) softnpu_store(y + i, end - i, gelu(softnpu_load(x + i, end - i, 0)));
    return 0;
}

SOFTNPU_EXPORT(gelu_f16) int32_t gelu_f16(softnpu_call *call) {
    const uint16_t *x = call->inputs[0].data;
    uint16_t *y = call->outputs[0].data;
    int64_t elements = softnpu_elements(&call->inputs[0]);
    for (int64_t i = 0; i < elements; i++)
        y[i] = softnpu_to_f16(wasm_f32x4_extract_lane(gelu(wasm_f32x4_splat(softnpu_from_f16(x[i]))), 0));
    return 0;
}
