// The function table of the graph extension.
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>

#include "entry/calls.hpp"
#include "graph/creation.hpp"
#include "graph/graph.hpp"
#include "graph/meta.hpp"
#include "graph/profiling.hpp"

using namespace softnpu;

namespace {

// ---------------------------------------------------------------- creation

uint32_t flags_of(const ze_graph_desc_2_t* desc) { return desc == nullptr ? 0 : desc->flags; }

ze_result_t create_with(const char* call, ze_context_handle_t hContext, ze_device_handle_t hDevice,
                        const ze_graph_desc_t* desc, uint32_t flags, ze_graph_handle_t* phGraph) {
    return guarded(call, [&] {
        const auto context = context_on(hContext, hDevice);
        require_nonnull(phGraph, "phGraph");
        *phGraph = new_handle<ze_graph_handle_t>(create_graph(context, desc, flags));
    });
}

ze_result_t create(ze_context_handle_t hContext, ze_device_handle_t hDevice, const ze_graph_desc_t* desc,
                   ze_graph_handle_t* phGraph) {
    return create_with("pfnCreate", hContext, hDevice, desc, 0, phGraph);
}

ze_result_t create2(ze_context_handle_t hContext, ze_device_handle_t hDevice, const ze_graph_desc_2_t* desc,
                    ze_graph_handle_t* phGraph) {
    return create_with("pfnCreate2", hContext, hDevice, reinterpret_cast<const ze_graph_desc_t*>(desc),
                       flags_of(desc), phGraph);
}

ze_result_t create3(ze_context_handle_t hContext, ze_device_handle_t hDevice, const ze_graph_desc_2_t* desc,
                    ze_graph_handle_t* phGraph, ze_graph_build_log_handle_t* phLog) {
    return guarded("pfnCreate3", [&] {
        const auto give_log = [&](const std::string& text) {
            if (phLog != nullptr) {
                *phLog = new_handle<ze_graph_build_log_handle_t>(std::make_shared<BuildLog>(text));
            }
        };
        try {
            const auto context = context_on(hContext, hDevice);
            require_nonnull(phGraph, "phGraph");
            const auto graph =
                create_graph(context, reinterpret_cast<const ze_graph_desc_t*>(desc), flags_of(desc));
            *phGraph = new_handle<ze_graph_handle_t>(graph);
            give_log(graph->build_log);
        } catch (const Error& failure) {
            give_log(failure.info().line() + "\n");
            throw;
        }
    });
}

ze_result_t destroy(ze_graph_handle_t hGraph) {
    return guarded("pfnDestroy", [&] {
        const auto context = remove<Graph>(hGraph)->context;
        context->memory()->flush();
    });
}

ze_result_t initialize(ze_graph_handle_t hGraph) {
    return guarded("pfnGraphInitialize", [&] {
        const auto graph = lookup<Graph>(hGraph);
        with_build_failure([&] { graph->initialize(); });
    });
}

// A no-op: the device manages its memory itself.
ze_result_t evict(ze_graph_handle_t hGraph) {
    return guarded("pfnEvict", [&] { lookup<Graph>(hGraph); });
}

// ---------------------------------------------------------------- properties of a graph

void describe(const Graph& graph, ze_graph_properties_t& out) {
    out.numGraphArgs = static_cast<uint32_t>(graph.meta.arguments.size());
}

void describe(const Graph& graph, ze_graph_properties_2_t& out) {
    out.numGraphArgs = static_cast<uint32_t>(graph.meta.arguments.size());
    out.initStageRequired = ZE_GRAPH_STAGE_INITIALIZE;
}

void describe(const Graph& graph, ze_graph_properties_3_t& out) {
    out.numGraphArgs = static_cast<uint32_t>(graph.meta.arguments.size());
    out.initStageRequired = ZE_GRAPH_STAGE_INITIALIZE;
    out.flags = graph.property_flags();
}

template <class Properties>
ze_result_t get_properties(ze_graph_handle_t hGraph, Properties* out) {
    return guarded("pfnGetProperties", [&] {
        const auto graph = lookup<Graph>(hGraph);
        require_nonnull(out, "pGraphProperties");
        describe(*graph, *out);
    });
}

ze_base_properties_t& head(ze_graph_argument_properties_t& out) { return out; }
ze_base_properties_t& head(ze_graph_argument_properties_2_t& out) { return out.base; }
ze_base_properties_t& head(ze_graph_argument_properties_3_t& out) { return out.base.base; }

// OpenVINO from 2025.0 to 2025.2 initialises neither stype nor pNext: whatever was on its stack is there.
bool is_readable(void* place, size_t size) {
    char copied[sizeof(ze_graph_argument_property_strides_t)];
    const iovec to{copied, size};
    const iovec from{place, size};
    return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == static_cast<ssize_t>(size);
}

template <uint32_t STYPE, class Properties>
ze_result_t argument_properties(const char* call, ze_graph_handle_t hGraph, uint32_t index, Properties* out) {
    return guarded(call, [&] {
        const auto graph = lookup<Graph>(hGraph);
        require_nonnull(out, "pGraphArgumentProperties");
        const ArgumentMeta& meta = graph->argument(index);
        describe(graph->meta, meta, *out);
        auto* const strides = static_cast<ze_graph_argument_property_strides_t*>(head(*out).pNext);
        if (head(*out).stype == STYPE && strides != nullptr && is_readable(strides, sizeof *strides) &&
            strides->stype == ZE_STRUCTURE_TYPE_GRAPH_ARGUMENT_PROPERTY_STRIDES) {
            strides->supportsDynamicStrides = meta.strides;
        }
    });
}

ze_result_t get_argument_properties(ze_graph_handle_t hGraph, uint32_t index,
                                    ze_graph_argument_properties_t* out) {
    return argument_properties<ZE_STRUCTURE_TYPE_GRAPH_ARGUMENT_PROPERTIES>("pfnGetArgumentProperties",
                                                                            hGraph, index, out);
}

ze_result_t get_argument_properties2(ze_graph_handle_t hGraph, uint32_t index,
                                     ze_graph_argument_properties_2_t* out) {
    return argument_properties<ZE_STRUCTURE_TYPE_GRAPH_ARGUMENT_PROPERTIES_2>("pfnGetArgumentProperties2",
                                                                              hGraph, index, out);
}

ze_result_t get_argument_properties3(ze_graph_handle_t hGraph, uint32_t index,
                                     ze_graph_argument_properties_3_t* out) {
    return argument_properties<ZE_STRUCTURE_TYPE_GRAPH_ARGUMENT_PROPERTIES_3>("pfnGetArgumentProperties3",
                                                                              hGraph, index, out);
}

ze_result_t get_argument_metadata(ze_graph_handle_t hGraph, uint32_t index,
                                  ze_graph_argument_metadata_t* out) {
    return guarded("pfnGraphGetArgumentMetadata", [&] {
        const auto graph = lookup<Graph>(hGraph);
        require_nonnull(out, "pGraphArgumentMetadata");
        describe(graph->argument(index), *out);
    });
}

ze_result_t get_native_binary(ze_graph_handle_t hGraph, size_t* pSize, uint8_t* pBinary) {
    return guarded("pfnGetNativeBinary", [&] {
        const auto graph = lookup<Graph>(hGraph);
        require_nonnull(pSize, "pSize");
        const auto [data, size] = with_build_failure([&] { return graph->native_binary(); });
        return write_bytes(pSize, pBinary, data, size);
    });
}

ze_result_t get_native_binary2(ze_graph_handle_t hGraph, size_t* pSize, const uint8_t** pBinary) {
    return guarded("pfnGetNativeBinary2", [&] {
        const auto graph = lookup<Graph>(hGraph);
        require_nonnull(pSize, "pSize");
        require_nonnull(pBinary, "pGraphNativeBinary");
        std::tie(*pBinary, *pSize) = with_build_failure([&] { return graph->native_binary(); });
    });
}

// ---------------------------------------------------------------- arguments and execution

ze_result_t set_argument_value(ze_graph_handle_t hGraph, uint32_t index, const void* value) {
    return guarded("pfnSetArgumentValue",
                   [&] { lookup<Graph>(hGraph)->set_argument(index, &value, nullptr); });
}

ze_result_t set_argument_value2(ze_graph_handle_t hGraph, uint32_t index, const void* value) {
    return guarded("pfnSetArgumentValue2", [&] {
        const auto graph = lookup<Graph>(hGraph);
        const void* const* pointer = nullptr;
        const uint32_t* strides = nullptr;
        for (const auto& link : ze_chain(value)) {
            if (link.stype == ZE_STRUCTURE_TYPE_GRAPH_ARGUMENT_TENSOR) {
                pointer = &static_cast<const ze_graph_argument_value_tensor_t&>(link).pTensor;
            } else if (link.stype == ZE_STRUCTURE_TYPE_GRAPH_ARGUMENT_STRIDES) {
                strides = static_cast<const ze_graph_argument_value_strides_t&>(link).userStrides;
            } else {
                throw invalid_argument(format("argument %u", index), format("structure type %#x", link.stype),
                                       "a tensor (0xa) or strides (0xb)");
            }
        }
        graph->set_argument(index, pointer, strides);
    });
}

ze_result_t append_initialize(ze_command_list_handle_t hCommandList, ze_graph_handle_t hGraph,
                              ze_event_handle_t hSignal, uint32_t numWaits, ze_event_handle_t* phWaits) {
    return guarded("pfnAppendGraphInitialize", [&] {
        const auto list = lookup<CommandList>(hCommandList);
        if (hGraph == nullptr) {
            // the null graph of this call has a result of its own
            throw uninitialized("graph", "null handle", "a live graph handle");
        }
        const Events events = events_of(hSignal, numWaits, phWaits);
        const auto graph = lookup<Graph>(hGraph);
        list->context->check_session(*graph->context);
        list->check_open();
        with_build_failure([&] { graph->initialize(); });
        list->append(graph_initialize(graph->on_device->handle, graph->on_device), events);
    });
}

ze_result_t append_execute(ze_command_list_handle_t hCommandList, ze_graph_handle_t hGraph,
                           ze_graph_profiling_query_handle_t hQuery, ze_event_handle_t hSignal,
                           uint32_t numWaits, ze_event_handle_t* phWaits) {
    return guarded("pfnAppendGraphExecute", [&] {
        static std::atomic<uint64_t> inferences{0};
        const auto list = lookup<CommandList>(hCommandList);
        const Events events = events_of(hSignal, numWaits, phWaits);
        const auto query = hQuery == nullptr ? nullptr : lookup<ProfilingQuery>(hQuery);
        const auto graph = lookup<Graph>(hGraph);
        list->context->check_session(*graph->context);
        list->check_open();
        Inference inference;
        inference.arguments = graph->arguments();
        for (const auto& argument : graph->meta.arguments) inference.inputs += argument.input;
        if (graph->meta.profiled) {
            if (query == nullptr) {
                throw invalid_null_handle("profiling query", "none", "a query: the graph is profiled");
            }
            inference.profile = query->memory(*graph);
        }
        with_build_failure([&] { graph->initialize(); });
        inference.graph = graph->on_device->handle;
        inference.id = ++inferences;
        inference.on_device = graph->on_device;
        list->append(execute(std::move(inference)), events);
    });
}

}  // namespace

namespace softnpu {

const ze_graph_dditable_ext_t& graph_table() {
    static const ze_graph_dditable_ext_t table = {
        create,
        destroy,
        get_properties,
        get_argument_properties,
        set_argument_value,
        append_initialize,
        append_execute,
        get_native_binary,
        device_get_graph_properties,
        get_argument_metadata,
        get_argument_properties2,
        get_argument_properties3,
        query_network_create,
        query_network_destroy,
        query_network_layers,
        build_log_get_string,
        create2,
        query_network_create2,
        query_context_memory,
        device_get_graph_properties2,
        get_native_binary2,
        get_properties,
        initialize,
        get_supported_options,
        is_option_supported,
        create3,
        get_properties,
        build_log_get_string2,
        build_log_destroy,
        set_argument_value2,
        evict,
    };
    return table;
}

}  // namespace softnpu
