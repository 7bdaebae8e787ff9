/* softnpu_kernel.h: the interface of a kernel, a WebAssembly module that computes one operation.
 *
 * Everything is that of wasm32: pointers have 4 bytes, numbers are little-endian. docs/kernels.md has the rules.
 * It needs no C library: clang or `zig cc`, target wasm32-freestanding.
 */
#ifndef SOFTNPU_KERNEL_H
#define SOFTNPU_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#define SOFTNPU_ABI 1
#define SOFTNPU_MAX_RANK 8

enum {
    SOFTNPU_BOOLEAN = 1, /* a byte: 0 or 1 */
    SOFTNPU_I8 = 2, SOFTNPU_I16 = 3, SOFTNPU_I32 = 4, SOFTNPU_I64 = 5,
    SOFTNPU_U8 = 6, SOFTNPU_U16 = 7, SOFTNPU_U32 = 8, SOFTNPU_U64 = 9,
    SOFTNPU_F16 = 10, SOFTNPU_BF16 = 11, SOFTNPU_F32 = 12, SOFTNPU_F64 = 13,
};

enum { SOFTNPU_INTEGERS = 1, SOFTNPU_NUMBERS = 2, SOFTNPU_TEXT = 3 };

/* A tensor: dense, the last dimension is contiguous. 144 bytes. */
typedef struct {
    void *data; /* null in softnpu_shapes */
    uint32_t type;
    uint32_t rank; /* at most SOFTNPU_MAX_RANK */
    uint32_t reserved;
    int64_t shape[SOFTNPU_MAX_RANK];
    int64_t strides[SOFTNPU_MAX_RANK]; /* in bytes */
} softnpu_tensor;

/* An attribute: always a list; a single number is a list of one. 16 bytes. */
typedef struct {
    const char *name;
    uint32_t kind;      /* SOFTNPU_INTEGERS: int64_t, SOFTNPU_NUMBERS: double, SOFTNPU_TEXT: char */
    const void *values; /* 8-byte aligned; a text ends with a zero byte that `count` does not count */
    uint32_t count;
} softnpu_attribute;

/* What a function of a kernel is called with. 48 bytes. */
typedef struct {
    uint32_t abi; /* SOFTNPU_ABI */
    uint32_t input_count;
    uint32_t output_count;
    uint32_t attribute_count;
    const softnpu_tensor *inputs; /* their data cannot be written */
    softnpu_tensor *outputs;
    const softnpu_attribute *attributes; /* in the order of the description, defaults filled in */
    const char *error;                   /* set it before returning non-zero: what is wrong, at most 200 bytes */
    void *scratch;                       /* zeroed memory, page-aligned */
    uint32_t scratch_size;               /* bytes: softnpu_shapes says how many it needs */
    uint32_t reserved[2];
} softnpu_call;

/* The description, as JSON without quotes around it: SOFTNPU_KERNEL({"abi": 1, "name": "Gelu", ...}); */
#define SOFTNPU_KERNEL(...)                                                                                          \
    __asm__(".section .custom_section.softnpu_kernel,\"\",@\n\t.ascii " SOFTNPU_QUOTE_(SOFTNPU_TEXT_(__VA_ARGS__)) \
            "\n\t.text\n")
#define SOFTNPU_TEXT_(...) #__VA_ARGS__
#define SOFTNPU_QUOTE_(text) SOFTNPU_TEXT_(text)

/* In front of each function that the device calls: SOFTNPU_EXPORT(run) int32_t run(softnpu_call *call) { ... } */
#define SOFTNPU_EXPORT(name) __attribute__((export_name(#name)))

_Static_assert(sizeof(softnpu_tensor) == 144 && sizeof(softnpu_attribute) == 16 && sizeof(softnpu_call) == 48,
               "compile for wasm32");

/* Fail with a message that the program sees. */
static inline int32_t softnpu_fail(softnpu_call *call, const char *why) {
    call->error = why;
    return 1;
}

/* For softnpu_shapes: an output has the shape of an input. */
static inline void softnpu_same_shape(softnpu_call *call, uint32_t output, uint32_t input) {
    softnpu_tensor *to = &call->outputs[output];
    to->rank = call->inputs[input].rank;
    for (uint32_t i = 0; i < to->rank; i++) to->shape[i] = call->inputs[input].shape[i];
}

/* For softnpu_shapes: an output has this rank and shape. */
static inline void softnpu_set_shape(softnpu_tensor *output, uint32_t rank, const int64_t *shape) {
    output->rank = rank;
    for (uint32_t i = 0; i < rank; i++) output->shape[i] = shape[i];
}

/* The product of the dimensions from `begin` to before `end`. */
static inline int64_t softnpu_product(const softnpu_tensor *tensor, uint32_t begin, uint32_t end) {
    int64_t product = 1;
    for (uint32_t i = begin; i < end; i++) product *= tensor->shape[i];
    return product;
}

static inline int64_t softnpu_elements(const softnpu_tensor *tensor) {
    return softnpu_product(tensor, 0, tensor->rank);
}

/* For softnpu_split: the first dimension that is not 1, along which tensors are cut; the rank if there is none. */
static inline uint32_t softnpu_outer_axis(const softnpu_tensor *tensor) {
    uint32_t axis = 0;
    while (axis < tensor->rank && tensor->shape[axis] == 1) axis++;
    return axis;
}

/* Attributes by their place in the description. */
static inline int64_t softnpu_integer(const softnpu_call *call, uint32_t index) {
    return *(const int64_t *)call->attributes[index].values;
}

static inline double softnpu_number(const softnpu_call *call, uint32_t index) {
    return *(const double *)call->attributes[index].values;
}

static inline const char *softnpu_text(const softnpu_call *call, uint32_t index) {
    return (const char *)call->attributes[index].values;
}

#endif
