/* One inference in C: a model file, an image of zeros, and the class that the NPU finds.
 *
 * Headers and library are those of OpenVINO's package on PyPI:
 *
 *     OV=$(python -c "import openvino, os; print(os.path.dirname(openvino.__file__))")
 *     cc hello_npu.c -I"$OV/include" $OV/libs/libopenvino_c.so.* -Wl,-rpath,"$OV/libs" -o hello_npu
 *     softnpu run -- ./hello_npu MODEL
 */
#include <openvino/c/openvino.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(ov_status_e status, const char* what) {
    if (status != OK) {
        fprintf(stderr, "%s: %s\n", what, ov_get_last_err_msg());
        exit(1);
    }
}
#define CHECK(call) check((call), #call)

static float* floats(const ov_tensor_t* tensor, const char* which) {
    ov_element_type_e type;
    void* data;
    CHECK(ov_tensor_get_element_type(tensor, &type));
    if (type != F32) {
        fprintf(stderr, "%s: element type %d of ov_element_type_e; expected F32, %d\n", which, type, F32);
        exit(1);
    }
    CHECK(ov_tensor_data(tensor, &data));
    return data;
}

int main(int argc, char** argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s MODEL; expected a file with one input and one output, both float\n", argv[0]);
        return 2;
    }
    ov_core_t* core;
    ov_compiled_model_t* model;
    ov_infer_request_t* request;
    ov_tensor_t *input, *output;
    char* name;
    size_t bytes, classes, best = 0;

    CHECK(ov_core_create(&core));
    CHECK(ov_core_compile_model_from_file(core, argv[1], "NPU", 0, &model));
    CHECK(ov_core_get_property(core, "NPU", "FULL_DEVICE_NAME", &name));
    printf("device: %s\n", name);
    CHECK(ov_compiled_model_create_infer_request(model, &request));

    /* the request's own tensors: nothing is copied to give them to the device */
    CHECK(ov_infer_request_get_input_tensor(request, &input));
    CHECK(ov_tensor_get_byte_size(input, &bytes));
    memset(floats(input, "input"), 0, bytes);
    CHECK(ov_infer_request_infer(request));

    CHECK(ov_infer_request_get_output_tensor(request, &output));
    CHECK(ov_tensor_get_size(output, &classes));
    const float* scores = floats(output, "output");
    for (size_t number = 1; number < classes; ++number)
        if (scores[number] > scores[best]) best = number;
    printf("class %zu of %zu, score %.6f\n", best, classes, scores[best]);

    ov_tensor_free(output);
    ov_tensor_free(input);
    ov_free(name);
    ov_infer_request_free(request);
    ov_compiled_model_free(model);
    ov_core_free(core);
    return 0;
}
