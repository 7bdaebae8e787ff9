// The result of zeInitDrivers, in a program that may have rights that its caller lacks.
#include <sys/auxv.h>

#include <cstdio>

#include "abi/functions.hpp"

int main() {
    ze_init_driver_type_desc_t types{0x20021, nullptr, ZE_INIT_DRIVER_TYPE_FLAG_NPU};
    uint32_t count = 0;
    const ze_result_t result = zeInitDrivers(&count, nullptr, &types);
    std::printf("%s %#x\n", getauxval(AT_SECURE) != 0 ? "privileged" : "ordinary",
                static_cast<unsigned>(result));
}
