/* A kernel to begin with: y = a * x + b. C and C++ compile it: `softnpu kernel build FILE`. */
#include "softnpu_kernel.h"

SOFTNPU_KERNEL({
    "abi": 1,
    "domain": "my.domain",
    "name": "Affine",
    "inputs": ["x"],
    "outputs": ["y"],
    "implementations": [{"inputs": ["f32"], "outputs": ["f32"], "run": "affine_f32"}],
    "attributes": [
        {"name": "a", "kind": "number"},
        {"name": "b", "kind": "number", "default": 0.0}
    ]
});

enum { A, B }; /* the attributes, in the order above */

/* Called before a run: which shapes the outputs have, for inputs with these shapes. */
SOFTNPU_EXPORT(softnpu_shapes) int32_t softnpu_shapes(softnpu_call *call) {
    softnpu_same_shape(call, 0, 0);
    return 0;
}

/* Called for each run. */
SOFTNPU_EXPORT(affine_f32) int32_t affine_f32(softnpu_call *call) {
    const float *x = (const float *)call->inputs[0].data;
    float *y = (float *)call->outputs[0].data;
    float a = (float)softnpu_number(call, A), b = (float)softnpu_number(call, B);
    int64_t elements = softnpu_elements(&call->inputs[0]);
    for (int64_t i = 0; i < elements; i++) y[i] = a * x[i] + b;
    return 0;
}
