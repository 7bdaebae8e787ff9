// The arguments of older programs: their structure is not initialised, so that anything may be chained.
#include "abi/extensions.hpp"
#include "model.hpp"

int main(int, char** argv) {
    const Npu npu;
    const auto& table = graph_table(npu);
    const std::string bytes = serialised(npu, argv[1], argv[2]);
    const auto graph = Model{npu, table, bytes}.compile();
    ze_base_properties_t unknown{};
    unknown.stype = 0x7ffe;
    for (void* const chained : {reinterpret_cast<void*>(0x4), static_cast<void*>(&unknown)}) {
        ze_graph_argument_properties_3_t found{};
        found.base.base.stype = ZE_STRUCTURE_TYPE_GRAPH_ARGUMENT_PROPERTIES_3;
        found.base.base.pNext = chained;
        npu.check(table.pfnGetArgumentProperties3(graph, 0, &found), "pfnGetArgumentProperties3");
        std::puts(found.debug_friendly_name);
    }
    npu.check(table.pfnDestroy(graph), "pfnDestroy");
    npu.check(zeContextDestroy(npu.context), "zeContextDestroy");
}
