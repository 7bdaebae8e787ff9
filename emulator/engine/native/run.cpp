#include "fast_path.hpp"

#include <time.h>

#include <algorithm>
#include <cstring>

#include "interface/schema.hpp"
#include "interface/words.hpp"
#include "workers.hpp"

namespace softnpu::engine {

namespace {

namespace event = schema::event_record;
namespace fence = schema::fence_record;
namespace ring = schema::ring_header;

constexpr uint64_t JOURNAL_MASK = 63;  // progress is logged at least every so many steps
constexpr uint64_t SHORT_NS = 100000;  // shorter times are charged unadjusted
constexpr uint64_t LARGE = 1 << 20;    // bytes that take about that long to write
constexpr uint64_t LEAST_CHARGED_PART = 32;

uint64_t time_of(clockid_t clock) {
    timespec at;
    clock_gettime(clock, &at);
    return static_cast<uint64_t>(at.tv_sec) * 1000000000 + static_cast<uint64_t>(at.tv_nsec);
}

void put(uint64_t& word, uint64_t value) { __atomic_store_n(&word, value, __ATOMIC_RELEASE); }
void add(uint64_t* word, uint64_t value) {
    __atomic_store_n(word, *word + value, __ATOMIC_RELEASE);  // nobody else writes it
}

uint8_t* slot_of(const Queue& queue, uint64_t sequence) {
    return queue.ring + ring::SIZE + ((sequence - 1) & (queue.slots - 1)) * sizeof(schema::Slot);
}

// The submission of a slot, if prepared and its commands are unchanged.
Prepared* find(Queue& queue, const uint8_t* content) {
    for (uint64_t tried = 0, index = queue.found; tried < queue.prepared_count; ++tried, ++index) {
        if (index >= queue.prepared_count) index = 0;
        Prepared* prepared = queue.prepared[index];
        if (std::memcmp(prepared->content, content, CONTENT) != 0) continue;
        // the client may change them at any time; only this comparison reads them
        if (std::memcmp(prepared->commands, prepared->data, prepared->size) != 0) return nullptr;
        queue.found = index + 1;  // most programs cycle through their submissions
        return prepared;
    }
    return nullptr;
}

void wake(uint8_t* word, uint8_t* waiters, uint32_t marked) {
    if (!marked) {
        full_fence();
        marked = load32(waiters);
    }
    if (marked) futex_wake(word);
}

// The mark is cleared before the word is stored: a waiter that marks itself later sees the new word.
uint32_t clear_mark(uint8_t* waiters) {
    const uint32_t marked = load32(waiters);
    if (marked) store32(waiters, 0);
    return marked;
}

void signal_fence(uint8_t* at, uint64_t ticket) {
    if (load64(at + fence::ARMED) != ticket) return;
    store32(at + fence::RESULT, 0);
    store64(at + fence::TIME, now_ns());
    const uint32_t marked = clear_mark(at + fence::WAITERS);
    store64(at + fence::SIGNALLED, ticket);
    wake(at + fence::SIGNALLED, at + fence::WAITERS, marked);
}

// An event is changed once, even if this engine dies: its count of changes is logged before.
void change_event(Queue& queue, const Step& step, uint64_t id, uint32_t state) {
    auto* at = static_cast<uint8_t*>(step.at);
    const uint32_t changes = load32(at + event::CHANGES);
    put(queue.state[STATE_INTENT_STEP], 0);
    put(queue.state[STATE_INTENT_VALUE], changes);
    put(queue.state[STATE_INTENT_EVENT], step.size);
    put(queue.state[STATE_INTENT_OFFSET], step.value);
    put(queue.state[STATE_INTENT_STEP], id);
    const uint64_t changed = static_cast<uint64_t>(changes + 1) << 32 | state;
    if (state == schema::event_state::DEVICE_RESET) {
        store64(at + event::STATE, changed);
        return;
    }
    store64(at + event::TIME, now_ns());
    const uint32_t marked = clear_mark(at + event::WAITERS);
    store64(at + event::STATE, changed);
    wake(at + event::STATE, at + event::WAITERS, marked);
}

void fill(const Step& step) {
    auto* at = static_cast<uint8_t*>(step.at);
    const uint64_t whole = step.size - step.size % sizeof(step.value);
    for (uint64_t done = 0; done < whole; done += sizeof(step.value))
        std::memcpy(at + done, &step.value, sizeof(step.value));
    std::memcpy(at + whole, &step.value, step.size - whole);
}

uint64_t waiting_in(const Queue& queue) { return load64(queue.ring + ring::TAIL) - queue.completed; }

// False if Python has to continue with this step.
bool run_step(Call& call, Queue& queue, const Step& step, uint64_t id, uint64_t& inferring_ns) {
    switch (step.kind) {
        case Kind::INFER:
        case Kind::CALL: {
            const uint64_t begun = now_ns();
            const bool is_called = step.kind == Kind::CALL;
            if (is_called) workers::wake();
            const bool done = is_called ? call.call(step.at) == CALLED : call.infer(step.at) == 0;
            if (!done) return false;  // it runs again there, and the reason is reported
            inferring_ns = now_ns() - begun;
            return true;
        }
        case Kind::COPY: std::memcpy(step.at, step.from, step.size); return true;
        case Kind::FILL: fill(step); return true;
        case Kind::TIMESTAMP:
            store64(static_cast<uint8_t*>(step.at),
                    static_cast<uint64_t>(static_cast<double>(now_ns()) / call.ns_per_tick));
            return true;
        case Kind::EVENT_WAIT:
            return load32(static_cast<uint8_t*>(step.at) + event::STATE) > schema::event_state::HOST_RESET;
        case Kind::EVENT_SIGNAL:
            change_event(queue, step, id, schema::event_state::DEVICE_SIGNALLED);
            return true;
        case Kind::EVENT_RESET: change_event(queue, step, id, schema::event_state::DEVICE_RESET); return true;
    }
    return false;
}

void count(Call& call, Queue& queue, const Prepared& prepared, uint64_t inferring_ns) {
    const Counters& counters = call.counters;
    add(counters.commands, prepared.commands_done);
    if (prepared.inferences) {
        add(counters.inferences, prepared.inferences);
        add(&queue.state[STATE_INFERENCES], prepared.inferences);
        add(&prepared.image[0], 1);
        add(&prepared.image[1], inferring_ns);
        const uint64_t* end = counters.bounds + counters.bound_count;
        add(&counters.histogram[std::lower_bound(counters.bounds, end, inferring_ns) - counters.bounds], 1);
        add(&counters.histogram[counters.bound_count + 1], inferring_ns);
    }
    add(counters.read, prepared.read);
    add(counters.written, prepared.written);
}

uint64_t process_ns() { return time_of(CLOCK_PROCESS_CPUTIME_ID); }

// Whether its CPU time is likely to be charged.
bool is_long(const Prepared& prepared) {
    return prepared.inferences ? prepared.image[1] >= SHORT_NS * prepared.image[0]
                               : prepared.written >= LARGE;
}

// Charges the time of a submission, less the time taken by other programs.
void charge(Call& call, Queue& queue, const Prepared& prepared, uint64_t used) {
    add(call.counters.busy, used);
    add(call.counters.tile_busy, used * prepared.tiles);
    add(&queue.state[STATE_SPENT], used);
    uint64_t own = used;
    if (used >= SHORT_NS) {
        const uint64_t cpu = process_ns(), since = cpu - call.cpu_ns;
        call.cpu_ns = cpu;
        own = std::max(std::min(used, since), used / LEAST_CHARGED_PART);
    }
    *queue.spent += own;
}

// Like `EngineQueue.finish`: the store of STATE_COMPLETED ends the submission, for this engine and the next.
void finish(Queue& queue, const Prepared& prepared, uint64_t sequence, uint64_t ticket) {
    store32(slot_of(queue, sequence) + offsetof(schema::Slot, result), 0);
    queue.completed = sequence;
    put(queue.state[STATE_COMPLETED], sequence);
    if (prepared.fence) signal_fence(prepared.fence, ticket);
    uint8_t* completed = queue.ring + ring::COMPLETED;
    store64(completed, sequence);
    full_fence();
    if (load32(queue.ring + ring::WAITERS)) futex_wake(completed);
}

bool leave_to_python(Queue& queue, uint64_t sequence) {
    // like `EngineQueue.suspend`: it is paused, and not to blame if the engine dies
    put(queue.state[STATE_RUNNING], 0);
    put(queue.state[STATE_REACHED], sequence << REACHED_BITS | queue.step);
    return false;
}

}  // namespace

uint64_t now_ns() { return time_of(CLOCK_MONOTONIC); }

bool run_next(Call& call, Queue& queue) {
    const uint64_t start = queue.ran_ns = now_ns(), sequence = queue.completed + 1;
    const uint64_t waiting = waiting_in(queue);
    schema::Slot slot;
    std::memcpy(&slot, slot_of(queue, sequence), sizeof(slot));
    const uint8_t* content = reinterpret_cast<const uint8_t*>(&slot) + offsetof(schema::Slot, buffer);
    if (waiting == 0 || waiting > queue.slots || slot.sequence != sequence || queue.poisoned == sequence)
        return false;
    const Prepared* prepared = find(queue, content);
    if (!prepared) return false;
    const auto is_cancelled = [&] {
        return prepared->fence && load64(prepared->fence + fence::CANCEL) == slot.ticket;
    };
    if (is_cancelled()) return false;

    if (is_long(*prepared)) call.cpu_ns = process_ns();
    put(queue.state[STATE_PAUSE], 0);
    put(queue.state[STATE_STARTED], start);
    put(queue.state[STATE_RUNNING], sequence);
    uint64_t inferring_ns = 0;
    if (prepared->inferences) workers::begins(prepared->image);
    for (uint64_t index = 0; index < prepared->count; ++index) {
        queue.step = index;
        const uint64_t id = sequence << REACHED_BITS | index;
        if (!run_step(call, queue, prepared->steps[index], id, inferring_ns))
            return leave_to_python(queue, sequence);
        if (index + 1 < prepared->count && (prepared->journaled || !(index & JOURNAL_MASK))) {
            put(queue.state[STATE_STARTED], now_ns());
            put(queue.state[STATE_REACHED], id + 1);
            queue.step = index + 1;
            if (is_cancelled()) return leave_to_python(queue, sequence);
        }
    }
    queue.step = 0;
    count(call, queue, *prepared, inferring_ns);
    if (prepared->inferences) workers::ran(prepared->image, inferring_ns / prepared->inferences);
    charge(call, queue, *prepared, now_ns() - start);
    add(call.counters.submissions, 1);
    finish(queue, *prepared, sequence, slot.ticket);
    ++call.done;
    return true;
}

}  // namespace softnpu::engine
