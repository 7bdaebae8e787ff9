// What the compiler library compiles: executables and queries.
#include <cstring>
#include <functional>

#include "entry/compiler.hpp"
#include "graph/creation.hpp"

using namespace softnpu;

namespace {

constexpr int MOST_GRAPHS = 16;  // of one model with separated weights; the daemon's compiler makes two

class Executable : public Object {
public:
    static constexpr Kind KIND = Kind::executable;
    Executable(std::weak_ptr<Object> compiler, const Graph& graph, std::string blob = {})
        : Object(std::move(compiler)),
          requirements(softnpu::requirements(graph.meta.platform)),
          blob(std::move(blob)) {}
    const std::string requirements;
    const std::string blob;  // empty if the program has it
};

// Up to its NUL, if it has one.
std::string text_of(const char* text, uint64_t size) {
    return text == nullptr ? std::string() : std::string(text, strnlen(text, size));
}

ze_graph_desc_t description(const vcl_executable_desc_t& desc, const std::string& flags) {
    require_nonnull(desc.modelIRData, "modelIRData");
    ze_graph_desc_t made{};
    made.format = ZE_GRAPH_FORMAT_NGRAPH_LITE;
    made.inputSize = desc.modelIRSize;
    made.pInput = desc.modelIRData;
    made.pBuildFlags = flags.c_str();
    return made;
}

// Not through the driver's cache, which is not this compiler's: NPU_BYPASS_UMD_CACHING does not arrive here.
std::shared_ptr<Graph> compiled(const OwnContext& own, const vcl_executable_desc_t& desc,
                                const std::string& flags) {
    const ze_graph_desc_t graph = description(desc, flags);
    return create_graph(own.context, &graph, ZE_GRAPH_FLAG_DISABLE_CACHING);
}

// Makes memory of the program, of so many bytes; null if there is none.
using Room = std::function<uint8_t*(uint64_t)>;

Room room_of(vcl_allocator2_t* allocator) {
    require_nonnull(allocator, "allocator");
    require_nonnull(reinterpret_cast<void*>(allocator->allocate), "allocate");
    return [=](uint64_t size) { return allocator->allocate(allocator, size); };
}

// Copies data about a graph into memory of the program.
std::pair<uint8_t*, uint64_t> give(const Graph& graph, const void* data, size_t size, const Room& room) {
    uint8_t* const target = room(size);
    if (target == nullptr) {
        throw out_of_host_memory("blob of '" + graph.meta.name + "'",
                                 format("the program's allocator has no %zu bytes", size), "memory for it");
    }
    std::memcpy(target, data, size);
    return {target, size};
}

std::pair<uint8_t*, uint64_t> give(Graph& graph, const Room& room) {
    const auto [data, size] = graph.native_binary();
    return give(graph, data, size, room);
}

// What a call gives beside the blob.
using Rest = std::function<void(const std::shared_ptr<Compiler>&, const Graph&, const Room&)>;

// Compiles, and gives the program the blob. `room` checks the caller's pointers: it is called in here, where
// what it throws becomes the answer of the call.
vcl_result_t create_in(const char* call, vcl_compiler_handle_t compiler, const vcl_executable_desc_t& desc,
                       const std::function<Room()>& room, uint8_t** blob, uint64_t* size,
                       const Rest& rest = {}) {
    return answered(call, [&](Log& log) {
        const auto owner = lookup<Compiler>(compiler);
        log = owner->log;
        require_nonnull(blob, "blobBuffer");
        require_nonnull(size, "blobSize");
        const Room allocate = room();
        const OwnContext own(*owner);
        const auto graph = compiled(own, desc, text_of(desc.options, desc.optionsSize));
        std::tie(*blob, *size) = give(*graph, allocate);
        if (rest) rest(owner, *graph, allocate);
    });
}

// Whether it takes constants of the original model: only init graphs do.
bool is_init(const Graph& graph) {
    return !graph.meta.arguments.empty() && graph.meta.arguments[0].node_name.rfind("vpux_ow_", 0) == 0;
}

// The init graphs, then the main graph, each in memory of its own.
vcl_result_t create_separated(const char* call, vcl_compiler_handle_t compiler,
                              const vcl_executable_desc_t& desc, vcl_allocator2_t* allocator,
                              vcl_executable_handle_t* executable) {
    return answered(call, [&](Log& log) {
        const auto owner = lookup<Compiler>(compiler);
        log = owner->log;
        const Room room = room_of(allocator);
        std::string flags = text_of(desc.options, desc.optionsSize);
        // the number of the call is a part of the configuration
        if (flags.find("--config") == std::string::npos) flags += " --config";
        const OwnContext own(*owner);
        for (int number = 0; number < MOST_GRAPHS; ++number) {
            const auto graph = compiled(own, desc, flags + format(" WS_COMPILE_CALL_NUMBER=\"%d\"", number));
            give(*graph, room);
            if (is_init(*graph)) continue;
            if (executable != nullptr)
                *executable =
                    new_handle<vcl_executable_handle_t>(std::make_shared<Executable>(owner, *graph));
            return;
        }
        throw unknown_error("compiler", "init graphs without an end", "a main graph");
    });
}

}  // namespace

VCL vclAllocatedExecutableCreate(vcl_compiler_handle_t compiler, vcl_executable_desc_t desc,
                                 const vcl_allocator_t* allocator, uint8_t** blob, uint64_t* size) {
    const auto room = [&]() -> Room {
        require_nonnull(allocator, "allocator");
        require_nonnull(reinterpret_cast<void*>(allocator->allocate), "allocate");
        return allocator->allocate;
    };
    return create_in("vclAllocatedExecutableCreate", compiler, desc, room, blob, size);
}

VCL vclAllocatedExecutableCreate2(vcl_compiler_handle_t compiler, vcl_executable_desc_t desc,
                                  vcl_allocator2_t* allocator, uint8_t** blob, uint64_t* size) {
    const auto room = [&] { return room_of(allocator); };
    return create_in("vclAllocatedExecutableCreate2", compiler, desc, room, blob, size);
}

// The string has no NUL here: OpenVINO takes its size as its length.
VCL vclAllocatedExecutableCreate3(vcl_compiler_handle_t compiler, vcl_executable_desc_t desc,
                                  vcl_allocator2_t* allocator, uint8_t** blob, uint64_t* size,
                                  uint8_t** requirements, uint64_t* requirements_size) {
    const auto room = [&]() -> Room {
        require_nonnull(requirements, "compatibilityBuffer");
        require_nonnull(requirements_size, "compatibilitySize");
        return room_of(allocator);
    };
    const auto rest = [&](const std::shared_ptr<Compiler>&, const Graph& graph, const Room& allocate) {
        const std::string text = softnpu::requirements(graph.meta.platform);
        std::tie(*requirements, *requirements_size) = give(graph, text.data(), text.size(), allocate);
    };
    return create_in("vclAllocatedExecutableCreate3", compiler, desc, room, blob, size, rest);
}

VCL vclAllocatedExecutableCreate4(vcl_compiler_handle_t compiler, vcl_executable_desc_t desc,
                                  vcl_allocator2_t* allocator, uint8_t** blob, uint64_t* size,
                                  vcl_executable_handle_t* executable) {
    const auto room = [&] { return room_of(allocator); };
    const auto rest = [&](const std::shared_ptr<Compiler>& owner, const Graph& graph, const Room&) {
        if (executable == nullptr) return;
        *executable = new_handle<vcl_executable_handle_t>(std::make_shared<Executable>(owner, graph));
    };
    return create_in("vclAllocatedExecutableCreate4", compiler, desc, room, blob, size, rest);
}

VCL vclAllocatedExecutableCreateWSOneShot(vcl_compiler_handle_t compiler, vcl_executable_desc_t desc,
                                          vcl_allocator2_t* allocator) {
    return create_separated("vclAllocatedExecutableCreateWSOneShot", compiler, desc, allocator, nullptr);
}

VCL vclAllocatedExecutableCreateWSOneShot2(vcl_compiler_handle_t compiler, vcl_executable_desc_t desc,
                                           vcl_allocator2_t* allocator, vcl_executable_handle_t* executable) {
    return create_separated("vclAllocatedExecutableCreateWSOneShot2", compiler, desc, allocator, executable);
}

VCL vclExecutableCreate(vcl_compiler_handle_t compiler, vcl_executable_desc_t desc,
                        vcl_executable_handle_t* executable) {
    return answered("vclExecutableCreate", [&](Log& log) {
        const auto owner = lookup<Compiler>(compiler);
        log = owner->log;
        require_nonnull(executable, "executable");
        const OwnContext own(*owner);
        const auto graph = compiled(own, desc, text_of(desc.options, desc.optionsSize));
        const auto [data, size] = graph->native_binary();
        *executable = new_handle<vcl_executable_handle_t>(std::make_shared<Executable>(
            owner, *graph, std::string(reinterpret_cast<const char*>(data), size)));
    });
}

VCL vclExecutableGetSerializableBlob(vcl_executable_handle_t executable, uint8_t* out, uint64_t* size) {
    return answered("vclExecutableGetSerializableBlob", [&](Log&) {
        const auto found = lookup<Executable>(executable);
        write_bytes(size, out, found->blob.data(), found->blob.size());
    });
}

// With its NUL.
VCL vclExecutableGetCompatibilityString(vcl_executable_handle_t executable, char* out, uint64_t* size) {
    return answered("vclExecutableGetCompatibilityString", [&](Log&) {
        const auto found = lookup<Executable>(executable);
        const std::string& text = found->requirements;
        write_bytes(size, reinterpret_cast<uint8_t*>(out), text.c_str(), text.size() + 1);
    });
}

VCL vclExecutableDestroy(vcl_executable_handle_t executable) {
    return answered("vclExecutableDestroy", [&](Log&) { remove<Executable>(executable); });
}

VCL vclQueryNetworkCreate(vcl_compiler_handle_t compiler, vcl_query_desc_t desc, vcl_query_handle_t* query) {
    return answered("vclQueryNetworkCreate", [&](Log& log) {
        const auto owner = lookup<Compiler>(compiler);
        log = owner->log;
        require_nonnull(query, "query");
        const std::string flags = text_of(desc.options, desc.optionsSize);
        const ze_graph_desc_t model = description(desc, flags);
        const OwnContext own(*owner);
        const auto found = query_network(own.context, &model);
        *query = new_handle<vcl_query_handle_t>(std::make_shared<QueryNetwork>(owner, found->layers));
    });
}

VCL vclQueryNetwork(vcl_query_handle_t query, uint8_t* out, uint64_t* size) {
    return answered("vclQueryNetwork", [&](Log&) {
        const auto found = lookup<QueryNetwork>(query);
        write_bytes(size, out, found->layers.data(), found->layers.size());
    });
}

VCL vclQueryNetworkDestroy(vcl_query_handle_t query) {
    return answered("vclQueryNetworkDestroy", [&](Log&) { remove<QueryNetwork>(query); });
}
