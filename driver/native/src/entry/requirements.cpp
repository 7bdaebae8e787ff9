// Runtime requirements: what a compiled graph needs of a device, as a text, and whether a device has it.
#include "entry/calls.hpp"
#include "graph/graph.hpp"
#include "graph/meta.hpp"

using namespace softnpu;

namespace {

// What the texts of this compiler begin with; those of others are not for this device to judge.
constexpr const char* KEY = "softnpu";

}  // namespace

ZE_EXPORT ze_result_t zeDeviceGetRuntimeRequirements(ze_device_handle_t hDevice, const void* pObjDesc,
                                                     size_t* pSize, char* pRequirements) {
    return guarded(__func__, [&] {
        lookup<Device>(hDevice);
        require_nonnull(pObjDesc, "pObjDesc");
        require_nonnull(pSize, "pSize");
        const auto& desc = *static_cast<const ze_runtime_requirements_graph_desc_t*>(pObjDesc);
        if (desc.stype != ZE_STRUCTURE_TYPE_RUNTIME_REQUIREMENTS_GRAPH_DESC &&
            desc.stype != ZE_STRUCTURE_TYPE_RUNTIME_REQUIREMENTS_GRAPH_DESC_EXT) {
            throw invalid_argument("pObjDesc", format("structure type %#x", desc.stype),
                                   "a graph (0x20045): an NPU has no modules");
        }
        const std::string text = requirements(lookup<Graph>(desc.requirementsSrc)->meta.platform);
        write_bytes(pSize, reinterpret_cast<uint8_t*>(pRequirements), text.c_str(), text.size() + 1);
    });
}

ZE_EXPORT ze_result_t zeDeviceGetRuntimeRequirementsKey(ze_device_handle_t hDevice, const char** pKey) {
    return guarded(__func__, [&] {
        lookup<Device>(hDevice);
        require_nonnull(pKey, "pKey");
        *pKey = KEY;
    });
}

ZE_EXPORT ze_result_t zeDeviceValidateRuntimeRequirements(ze_device_handle_t hDevice,
                                                          const char* pRequirements,
                                                          ze_validate_runtime_requirements_output_t* pOut) {
    return guarded(__func__, [&] {
        const auto device = lookup<Device>(hDevice);
        require_nonnull(pRequirements, "pRequirements");
        require_nonnull(pOut, "pOut");
        const std::string_view given = pRequirements;
        if (given == requirements(device->info.platform)) {
            pOut->result = ZE_VALIDATE_RUNTIME_REQUIREMENTS_RESULT_REQUIREMENTS_MET;
        } else if (given.rfind(std::string(KEY) + "=", 0) == 0) {
            pOut->result = ZE_VALIDATE_RUNTIME_REQUIREMENTS_RESULT_REQUIREMENTS_NOT_MET;
        } else {
            pOut->result = ZE_VALIDATE_RUNTIME_REQUIREMENTS_RESULT_NOT_APPLICABLE;
        }
    });
}
