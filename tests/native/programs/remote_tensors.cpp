// OpenVINO's remote tensors from C++: memory of the context, of a descriptor, of a file, of the program.
// Arguments: the IR of a small model with one input, a file to create.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <openvino/openvino.hpp>
#include <openvino/runtime/intel_npu/level_zero/level_zero.hpp>
#include <vector>

namespace {

constexpr size_t PAGE = 4096;

std::vector<float> values(size_t count, float first) {
    std::vector<float> made(count);
    for (size_t at = 0; at < count; ++at) made[at] = first + static_cast<float>(at % 7) / 8;
    return made;
}

void check(bool right, const char* what) {
    if (right) return;
    std::fprintf(stderr, "%s\n", what);
    std::abort();
}

struct Both {
    ov::InferRequest npu, cpu;
    ov::Output<const ov::Node> input, output;

    void compare(const std::vector<float>& given, const char* what) {
        ov::Tensor tensor(ov::element::f32, input.get_shape());
        std::memcpy(tensor.data(), given.data(), tensor.get_byte_size());
        cpu.set_input_tensor(tensor);
        cpu.infer();
        npu.infer();
        const auto expected = cpu.get_output_tensor();
        ov::Tensor found(ov::element::f32, expected.get_shape());
        npu.get_tensor(output).copy_to(found);
        check(std::memcmp(expected.data(), found.data(), found.get_byte_size()) == 0, what);
    }
};

}  // namespace

int main(int count, char** words) {
    if (count < 3) return 2;
    ov::Core core;
    const auto model = core.read_model(words[1]);
    model->reshape({1, 1, 8, 8});
    auto context = core.get_default_context("NPU").as<ov::intel_npu::level_zero::ZeroContext>();
    auto compiled = core.compile_model(model, context);
    auto reference = core.compile_model(model, "CPU", ov::hint::inference_precision(ov::element::f32));
    Both both{compiled.create_infer_request(), reference.create_infer_request(), compiled.input(),
              compiled.output()};
    const ov::Shape shape = compiled.input().get_shape();
    const size_t size = ov::shape_size(shape);

    const auto result = context.create_l0_host_tensor(ov::element::f32, compiled.output().get_shape(),
                                                      ov::intel_npu::TensorType::OUTPUT);
    both.npu.set_tensor(both.output, result);
    auto own = context.create_l0_host_tensor(ov::element::f32, shape, ov::intel_npu::TensorType::INPUT);
    const auto first = values(size, 0.25f);
    std::memcpy(own.get(), first.data(), size * sizeof(float));
    both.npu.set_tensor(both.input, own);
    both.compare(first, "memory of the context");

    // like a DMA buffer, its size is fixed
    const int fd = memfd_create("remote", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    constexpr int fixed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    check(ftruncate(fd, PAGE) == 0 && fcntl(fd, F_ADD_SEALS, fixed) == 0, "memfd");
    void* const mapped = mmap(nullptr, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(mapped != MAP_FAILED, "mmap");
    {
        const auto shared = context.create_tensor(ov::element::f32, shape, fd);
        both.npu.set_tensor(both.input, shared);
        for (const float start : {0.5f, -0.125f}) {
            const auto given = values(size, start);
            std::memcpy(mapped, given.data(), size * sizeof(float));
            both.compare(given, "memory of a descriptor");
        }
    }
    close(fd);

    const auto filed = values(size, 0.75f);
    std::ofstream(words[2], std::ios::binary)
        .write(std::string(PAGE, '\0').data(), PAGE)
        .write(reinterpret_cast<const char*>(filed.data()),
               static_cast<std::streamsize>(size * sizeof(float)));
    both.npu.set_tensor(both.input, context.create_tensor(ov::element::f32, shape,
                                                          ov::intel_npu::FileDescriptor(words[2], PAGE)));
    both.compare(filed, "memory of a file");

    // memory of the program cannot be imported, which OpenVINO reports; as a tensor it is copied
    void* const program = mmap(nullptr, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ov::AnyMap wanted{{ov::intel_npu::mem_type.name(), ov::intel_npu::MemType::CPU_VA},
                      {ov::intel_npu::mem_handle.name(), program}};
    try {
        context.create_tensor(ov::element::f32, {PAGE / sizeof(float)}, wanted);
        check(false, "memory of the program was imported");
    } catch (const ov::Exception& refused) {
        std::puts(std::strstr(refused.what(), "UNSUPPORTED_FEATURE") ? "refused" : refused.what());
    }
    std::memcpy(program, first.data(), size * sizeof(float));
    both.npu.set_tensor(both.input, ov::Tensor(ov::element::f32, shape, program));
    both.compare(first, "memory of the program");
    std::puts("done");
}
