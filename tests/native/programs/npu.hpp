// Shared by the test programs: a driver, a device, a context, and a loud end when a call fails.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "abi/functions.hpp"

#define CHECK(call)                                                                 \
    do {                                                                            \
        const ze_result_t result_ = (call);                                         \
        if (result_ != ZE_RESULT_SUCCESS) fail(#call, result_, __FILE__, __LINE__); \
    } while (0)

// Returns when the thread sleeps in a system call.
inline void wait_asleep(pid_t thread) {
    char name[64], state = 0;
    std::snprintf(name, sizeof name, "/proc/self/task/%d/stat", thread);
    for (int seen = 0; seen < 3; seen = state == 'S' ? seen + 1 : 0) {
        std::FILE* const file = std::fopen(name, "r");
        if (file == nullptr || std::fscanf(file, "%*d (%*[^)]) %c", &state) != 1) std::abort();
        std::fclose(file);
        usleep(1000);
    }
}

struct Npu {
    ze_driver_handle_t driver = nullptr;
    ze_device_handle_t device = nullptr;
    ze_context_handle_t context = nullptr;

    Npu() {
        ze_init_driver_type_desc_t types{0x20021, nullptr, ZE_INIT_DRIVER_TYPE_FLAG_NPU};
        uint32_t count = 1;
        check(zeInitDrivers(&count, &driver, &types), "zeInitDrivers");
        count = 1;
        check(zeDeviceGet(driver, &count, &device), "zeDeviceGet");
        ze_context_desc_t desc{0xd, nullptr, 0};
        check(zeContextCreate(driver, &desc, &context), "zeContextCreate");
    }

    Npu(ze_driver_handle_t of, ze_device_handle_t on, ze_context_handle_t with)
        : driver(of), device(on), context(with) {}

    [[noreturn]] void fail(const char* what, ze_result_t result, const char* file, int line) const {
        const char* text = "";
        if (driver != nullptr) zeDriverGetLastErrorDescription(driver, &text);
        std::fprintf(stderr, "%s:%d: %s: %#x %s\n", file, line, what, static_cast<unsigned>(result), text);
        std::abort();
    }
    void check(ze_result_t result, const char* what) const {
        if (result != ZE_RESULT_SUCCESS) fail(what, result, __FILE__, __LINE__);
    }

    ze_command_queue_handle_t queue() const {
        ze_command_queue_desc_t desc{0xe, nullptr, 0, 0, 0, ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS, 0};
        ze_command_queue_handle_t made;
        check(zeCommandQueueCreate(context, device, &desc, &made), "zeCommandQueueCreate");
        return made;
    }
    ze_command_list_handle_t list() const {
        ze_command_list_desc_t desc{0xf, nullptr, 0, 0};
        ze_command_list_handle_t made;
        check(zeCommandListCreate(context, device, &desc, &made), "zeCommandListCreate");
        return made;
    }
    ze_fence_handle_t fence(ze_command_queue_handle_t queue) const {
        ze_fence_desc_t desc{0x12, nullptr, 0};
        ze_fence_handle_t made;
        check(zeFenceCreate(queue, &desc, &made), "zeFenceCreate");
        return made;
    }
    // Submits a list that waits for an event, with this fence; returns the event.
    ze_event_handle_t gated(ze_command_queue_handle_t queue, ze_fence_handle_t fence) const {
        ze_event_pool_desc_t pool_desc{0x10, nullptr, 0, 1};
        ze_event_pool_handle_t pool;
        check(zeEventPoolCreate(context, &pool_desc, 0, nullptr, &pool), "event pool");
        ze_event_desc_t event_desc{0x11, nullptr, 0, 0, 0};
        ze_event_handle_t gate;
        check(zeEventCreate(pool, &event_desc, &gate), "event");
        auto waiting = list();
        check(zeCommandListAppendWaitOnEvents(waiting, 1, &gate), "wait");
        check(zeCommandListClose(waiting), "close");
        check(zeCommandQueueExecuteCommandLists(queue, 1, &waiting, fence), "execute");
        return gate;
    }
    uint8_t* host(size_t size) const {
        ze_host_mem_alloc_desc_t desc{0x16, nullptr, 0};
        void* made;
        check(zeMemAllocHost(context, &desc, size, 64, &made), "zeMemAllocHost");
        return static_cast<uint8_t*>(made);
    }
};
