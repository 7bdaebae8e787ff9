// Wrong programs, each with its right form, for `softnpu check`: names and forms of the functions tell which.
// Arguments: names; all without any.
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
    void end() const {
        wait(one);
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
                                            leak};
    for (const auto program : programs) {
        wrong_form(program);
        right_form(program);
    }
    std::printf("done\n");
}
