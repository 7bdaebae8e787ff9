// Calls that fail, with a log, from the destructors of thread-local and static objects.
#include <thread>

#include "model.hpp"

static Npu* npu;

static void fail_with_log(const char* who) {
    static const uint8_t junk[600] = "x";
    const auto& table = graph_table(*npu);
    ze_graph_desc_2_t desc{};
    desc.base.stype = 0xe;
    desc.base.format = 7;
    desc.base.inputSize = sizeof junk;
    desc.base.pInput = junk;
    ze_graph_handle_t graph;
    const ze_result_t result = table.pfnCreate2(npu->context, npu->device, &desc, &graph);
    char log[4000];
    uint32_t size = sizeof log;
    npu->check(table.pfnBuildLogGetString(nullptr, &size, log), "log");
    std::printf("%s: %#x %.36s\n", who, static_cast<unsigned>(result), log);
    std::fflush(stdout);
}

struct Late {
    const char* who;
    ~Late() { fail_with_log(who); }
};

static Late at_exit{"static"};

static void body() {
    static thread_local Late late{"thread-local"};
    (void)&late;  // constructed before the driver's own objects of this thread
    fail_with_log("thread");
}

int main() {
    npu = new Npu;
    std::thread(body).join();
    fail_with_log("main");
}
