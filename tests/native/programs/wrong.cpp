// Wrong programs, each with its right form, for `softnpu check`: names and forms of the functions tell which.
// Arguments: names; all without any.
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "npu.hpp"

namespace {

constexpr size_t BYTES = 8192;
constexpr uint64_t FOREVER = UINT64_MAX;

struct Rig : Npu {
    ze_command_queue_handle_t one = queue(), two = queue();
    ze_event_pool_handle_t pool = nullptr;
    uint32_t events = 0;

    Rig() {
        ze_event_pool_desc_t desc{0x10, nullptr, 0, 8};
        ze_device_handle_t devices[] = {device};
        check(zeEventPoolCreate(context, &desc, 1, devices, &pool), "pool");
    }
    ze_event_handle_t event() {
        ze_event_desc_t desc{0x11, nullptr, events++, 0, 0};
        ze_event_handle_t made;
        check(zeEventCreate(pool, &desc, &made), "event");
        return made;
    }
    uint8_t* memory() const {
        uint8_t* const made = host(BYTES);
        std::memset(made, 1, BYTES);
        return made;
    }
    void fill(ze_command_list_handle_t list, uint8_t* at, ze_event_handle_t signal = nullptr,
              ze_event_handle_t wait = nullptr) const {
        const uint8_t pattern = 7;
        check(zeCommandListAppendMemoryFill(list, at, &pattern, 1, BYTES, signal, wait != nullptr, &wait),
              "fill");
    }
    void copy(ze_command_list_handle_t list, uint8_t* to, const uint8_t* from) const {
        check(zeCommandListAppendMemoryCopy(list, to, from, BYTES, nullptr, 0, nullptr), "copy");
    }
    void submit(ze_command_queue_handle_t queue, ze_command_list_handle_t list) const {
        check(zeCommandListClose(list), "close");
        check(zeCommandQueueExecuteCommandLists(queue, 1, &list, nullptr), "execute");
    }
    void wait(ze_command_queue_handle_t queue) const {
        check(zeCommandQueueSynchronize(queue, FOREVER), "synchronize");
    }
    bool is_stuck = false;

    void end() const {
        if (!is_stuck) wait(one);
        wait(two);
        check(zeContextDestroy(context), "context");
    }
};

}  // namespace

// Not in an anonymous namespace: their names are looked for in the findings.

void race(Rig& rig, bool right) {
    uint8_t* const memory = rig.memory();
    const auto first = rig.list(), second = rig.list();
    rig.fill(first, memory);
    rig.fill(second, memory);
    rig.submit(rig.one, first);
    if (right) rig.wait(rig.one);
    rig.submit(rig.two, second);
}

void list_order(Rig& rig, bool right) {
    uint8_t *const memory = rig.memory(), *const other = rig.memory();
    const auto list = rig.list();
    rig.fill(list, memory);
    if (right) rig.check(zeCommandListAppendBarrier(list, nullptr, 0, nullptr), "barrier");
    rig.copy(list, other, memory);
    rig.submit(rig.one, list);
}

void uninitialised_read(Rig& rig, bool right) {
    uint8_t *const fresh = rig.host(BYTES), *const other = rig.memory();
    if (right) std::memset(fresh, 0, BYTES);
    const auto list = rig.list();
    rig.copy(list, other, fresh);
    rig.submit(rig.one, list);
}

// Submits a fill that waits for an event; if right, it has ended.
struct Held {
    Rig& rig;
    uint8_t* const memory = rig.memory();
    const ze_event_handle_t event = rig.event();
    const ze_command_list_handle_t list = rig.list();

    Held(Rig& of, bool right) : rig(of) {
        rig.fill(list, memory, nullptr, event);
        rig.submit(rig.one, list);
        if (!right) return;
        let_go();
        rig.wait(rig.one);
    }
    void let_go() const { rig.check(zeEventHostSignal(event), "signal"); }
};

void freed_in_flight(Rig& rig, bool right) {
    const Held held(rig, right);
    rig.check(zeMemFree(rig.context, held.memory), "free");
    held.let_go();
}

void host_access_in_flight(Rig& rig, bool right) {
    const Held held(rig, right);
    held.memory[5] = 3;
    held.let_go();
}

void destroyed_in_flight(Rig& rig, bool right) {
    const Held held(rig, right);
    rig.check(zeCommandListDestroy(held.list), "destroy");
    held.let_go();
}

void use_after_free(Rig& rig, bool right) {
    uint8_t *const memory = rig.memory(), *const other = rig.memory();
    const auto list = rig.list();
    rig.copy(list, other, memory);
    if (!right) rig.check(zeMemFree(rig.context, memory), "free");
    rig.submit(rig.one, list);
}

void use_after_free_on_the_host(Rig& rig, bool right) {
    rig.memory();  // it keeps their segment: else the program crashes
    volatile uint8_t* const memory = rig.memory();
    if (right) memory[7] = 1;
    rig.check(zeMemFree(rig.context, const_cast<uint8_t*>(memory)), "free");
    if (!right) memory[7] = 1;
}

void out_of_bounds(Rig& rig, bool right) {
    uint8_t *const memory = rig.memory(), *const other = rig.host(2 * BYTES);
    const auto list = rig.list();
    rig.check(
        zeCommandListAppendMemoryCopy(list, other, memory, BYTES + (right ? 0 : 1), nullptr, 0, nullptr),
        "copy");
    rig.submit(rig.one, list);
    if (!right && zeCommandQueueSynchronize(rig.one, FOREVER) == ZE_RESULT_SUCCESS) std::abort();
}

void out_of_bounds_on_the_host(Rig& rig, bool right) {
    volatile uint8_t* const memory = rig.memory();
    memory[right ? BYTES - 1 : BYTES] = 1;
}

void unwritten_output(Rig& rig, bool right) {
    volatile uint8_t* const memory = rig.host(BYTES);
    const auto list = rig.list();
    rig.fill(list, const_cast<uint8_t*>(memory));
    rig.check(zeCommandListClose(list), "close");
    if (right) {
        rig.submit(rig.one, list);
        rig.wait(rig.one);
    }
    if (memory[3] == 7 && !right) std::abort();
}

void fence_waited_twice(Rig& rig, bool right) {
    volatile uint8_t* const memory = rig.memory();
    const auto fence = rig.fence(rig.one);
    const auto first = rig.list(), second = rig.list();
    rig.fill(first, rig.memory());
    rig.check(zeCommandListClose(first), "close");
    auto list = first;
    rig.check(zeCommandQueueExecuteCommandLists(rig.one, 1, &list, fence), "execute");
    rig.check(zeFenceHostSynchronize(fence, FOREVER), "fence");
    const auto gate = rig.event();
    rig.fill(second, const_cast<uint8_t*>(memory), nullptr, gate);
    rig.submit(rig.one, second);
    if (right) {
        rig.check(zeEventHostSignal(gate), "signal");
        rig.wait(rig.one);
    }
    rig.check(zeFenceHostSynchronize(fence, FOREVER), "fence");
    memory[5] = 3;
    rig.check(zeEventHostSignal(gate), "signal");
}

void deadlock(Rig& rig, bool right) {
    const auto event = rig.event();
    const auto list = rig.list();
    rig.fill(list, rig.memory(), event, right ? nullptr : event);
    rig.submit(rig.one, list);
    rig.is_stuck = !right;
    if (!right && zeCommandQueueSynchronize(rig.one, 20000000) != ZE_RESULT_NOT_READY) std::abort();
}

void lost_wake_up(Rig& rig, bool right) {
    const auto event = rig.event();
    rig.check(zeEventHostSignal(event), "signal");
    const auto list = rig.list();
    rig.fill(list, rig.memory(), nullptr, event);
    rig.submit(rig.one, list);
    if (right) rig.wait(rig.one);
    rig.check(zeEventHostReset(event), "reset");
    rig.check(zeEventHostSignal(event), "signal");
}

void foreign_handle(Rig& rig, bool right) {
    const auto fence = rig.fence(rig.one);
    const pid_t child = fork();
    if (child == 0) _exit(right || zeFenceQueryStatus(fence) == ZE_RESULT_ERROR_UNINITIALIZED ? 0 : 1);
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) std::abort();
}

void leak(Rig& rig, bool right) {
    ze_context_desc_t desc{0xd, nullptr, 0};
    ze_context_handle_t context;
    rig.check(zeContextCreate(rig.driver, &desc, &context), "context");
    const Npu other{rig.driver, rig.device, context};
    for (int index = 0; index < 3; ++index) other.host(BYTES);
    other.fence(other.queue());
    if (right) rig.check(zeContextDestroy(context), "destroy");
}

void wrong_form(void (*program)(Rig&, bool)) {
    Rig rig;
    program(rig, false);
    rig.end();
}

void right_form(void (*program)(Rig&, bool)) {
    Rig rig;
    program(rig, true);
    rig.end();
}

int main() {
    void (*const programs[])(Rig&, bool) = {race,
                                            list_order,
                                            uninitialised_read,
                                            freed_in_flight,
                                            host_access_in_flight,
                                            destroyed_in_flight,
                                            use_after_free,
                                            use_after_free_on_the_host,
                                            out_of_bounds,
                                            out_of_bounds_on_the_host,
                                            unwritten_output,
                                            fence_waited_twice,
                                            deadlock,
                                            lost_wake_up,
                                            foreign_handle,
                                            leak};
    for (const auto program : programs) {
        wrong_form(program);
        right_form(program);
    }
    std::printf("done\n");
}
