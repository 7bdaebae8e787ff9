// The function table of the profiling extension.
#include "base/output.hpp"
#include "entry/calls.hpp"
#include "graph/profiling.hpp"
#include "session/driver.hpp"
#include "session/runtime.hpp"

using namespace softnpu;

namespace {

ze_result_t pool_create(ze_graph_handle_t hGraph, uint32_t count, ze_graph_profiling_pool_handle_t* phPool) {
    return guarded("pfnProfilingPoolCreate", [&] {
        const auto graph = lookup<Graph>(hGraph);
        require_nonnull(phPool, "phProfilingPool");
        *phPool = new_handle<ze_graph_profiling_pool_handle_t>(std::make_shared<ProfilingPool>(graph, count));
    });
}

ze_result_t pool_destroy(ze_graph_profiling_pool_handle_t hPool) {
    return guarded("pfnProfilingPoolDestroy", [&] {
        lookup<ProfilingPool>(hPool)->check_unused();
        const auto context = remove<ProfilingPool>(hPool)->graph->context;
        context->memory()->flush();
    });
}

ze_result_t query_create(ze_graph_profiling_pool_handle_t hPool, uint32_t index,
                         ze_graph_profiling_query_handle_t* phQuery) {
    return guarded("pfnProfilingQueryCreate", [&] {
        const auto pool = lookup<ProfilingPool>(hPool);
        require_nonnull(phQuery, "phProfilingQuery");
        *phQuery =
            new_handle<ze_graph_profiling_query_handle_t>(std::make_shared<ProfilingQuery>(pool, index));
    });
}

ze_result_t query_destroy(ze_graph_profiling_query_handle_t hQuery) {
    return guarded("pfnProfilingQueryDestroy", [&] { remove<ProfilingQuery>(hQuery); });
}

ze_result_t query_get_data(ze_graph_profiling_query_handle_t hQuery, uint32_t type, uint32_t* pSize,
                           uint8_t* pData) {
    return guarded("pfnProfilingQueryGetData", [&] {
        const std::string data = lookup<ProfilingQuery>(hQuery)->data(type);
        return write_bytes(pSize, pData, data.data(), data.size());
    });
}

ze_result_t get_properties(ze_device_handle_t hDevice, ze_device_profiling_data_properties_t* out) {
    return guarded("pfnDeviceGetProfilingDataProperties", [&] {
        lookup<Device>(hDevice);
        require_nonnull(out, "pDeviceProfilingDataProperties");
        out->extensionVersion = ZE_PROFILING_DATA_EXT_VERSION;
    });
}

// Decoding leaves no log.
ze_result_t log_get_string(ze_graph_profiling_query_handle_t hQuery, uint32_t* pSize, char* pLog) {
    return guarded("pfnProfilingLogGetString", [&] {
        lookup<ProfilingQuery>(hQuery);
        return write_text(pSize, pLog, "");
    });
}

}  // namespace

namespace softnpu {

const ze_graph_profiling_dditable_ext_t& profiling_table() {
    static const ze_graph_profiling_dditable_ext_t table = {
        pool_create,    pool_destroy,   query_create,   query_destroy,
        query_get_data, get_properties, log_get_string,
    };
    return table;
}

}  // namespace softnpu
