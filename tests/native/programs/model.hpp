// A model as programs pass it to the compiler, with its weights copied.
#pragma once

#include <fstream>
#include <iterator>
#include <string>

#include "npu.hpp"

inline std::string read_file(const char* path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

template <class T>
void put(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// The layout that copies the weights.
inline std::string serialised(const std::string& xml, const std::string& weights,
                              const ze_device_graph_properties_t& device) {
    std::string out;
    put<uint16_t>(out, device.compilerMajor);
    put<uint16_t>(out, device.compilerMinor);
    put<uint32_t>(out, 2);
    put<uint64_t>(out, xml.size());
    out += xml;
    put<uint64_t>(out, weights.size());
    return out + weights;
}

struct Model {
    const Npu& npu;
    const ze_graph_dditable_ext_t& table;
    const std::string& bytes;

    ze_graph_handle_t compile() const {
        ze_graph_desc_2_t desc{};
        desc.base.stype = 0xe;
        desc.base.format = ZE_GRAPH_FORMAT_NGRAPH_LITE;
        desc.base.inputSize = bytes.size();
        desc.base.pInput = reinterpret_cast<const uint8_t*>(bytes.data());
        ze_graph_handle_t graph;
        npu.check(table.pfnCreate2(npu.context, npu.device, &desc, &graph), "pfnCreate2");
        npu.check(table.pfnGraphInitialize(graph), "pfnGraphInitialize");
        return graph;
    }
};

inline const ze_graph_dditable_ext_t& graph_table(const Npu& npu) {
    void* address;
    npu.check(zeDriverGetExtensionFunctionAddress(npu.driver, "ZE_extension_graph_1_8", &address),
              "extension");
    return *static_cast<const ze_graph_dditable_ext_t*>(address);
}

inline std::string serialised(const Npu& npu, const char* xml, const char* weights) {
    ze_device_graph_properties_t device{};
    npu.check(graph_table(npu).pfnDeviceGetGraphProperties(npu.device, &device), "properties");
    return serialised(read_file(xml), read_file(weights), device);
}
