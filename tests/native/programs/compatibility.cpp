// Prints OpenVINO's COMPATIBILITY_CHECK of each argument, which its Python cannot show.
#include <iostream>
#include <openvino/runtime/core.hpp>
#include <openvino/runtime/properties.hpp>

int main(int count, char** arguments) {
    ov::Core core;
    for (int at = 1; at < count; ++at) {
        const ov::AnyMap given = {{ov::runtime_requirements.name(), std::string(arguments[at])}};
        std::cout << core.get_property("NPU", ov::compatibility_check, given) << "\n";
    }
}
