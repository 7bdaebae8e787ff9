// Prepared submissions, run without Python. native_calls.py describes and fills these records.
//
// Python prepares a submission that it has run before: the content of its slot and its commands, and their
// effect as a few steps. `softnpu_fast_path` runs such submissions, in the scheduler's order and by the rules
// of interface.md, and returns for everything else before touching it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace softnpu::engine {

// Words of a queue's record: `STATE_...` of links/engine.py.
enum State : size_t {
    STATE_COMPLETED = 0,
    STATE_RUNNING = 1,
    STATE_STARTED = 2,
    STATE_REACHED = 3,
    STATE_INTENT_STEP = 4,
    STATE_INTENT_VALUE = 5,
    STATE_INTENT_EVENT = 6,
    STATE_INTENT_OFFSET = 7,
    STATE_SPENT = 12,
    STATE_INFERENCES = 13,
    STATE_WAITING = 14,
    STATE_PAUSE = 15,
};
constexpr uint32_t REACHED_BITS = 24;

enum class Kind : uint64_t { INFER = 1, COPY, FILL, TIMESTAMP, EVENT_WAIT, EVENT_SIGNAL, EVENT_RESET, CALL };

struct Step {
    Kind kind;
    void* at;          // the target, an event, a request of OpenVINO, or an object of Python
    const void* from;  // the source of a copy
    uint64_t size;     // of a copy or a fill; of an event: the handle of its memory
    uint64_t value;    // the pattern of a fill, 8 bytes; of an event: its offset in that memory
};

constexpr size_t CONTENT = 40;  // of a slot, between the sequence number and the ticket

// One prepared submission: the content of its slot, and its commands.
struct Prepared {
    uint8_t content[CONTENT];
    const void* commands;  // in client memory
    const void* data;      // a private copy
    uint64_t size;
    uint8_t* fence;  // null: none
    const Step* steps;
    uint64_t count;
    uint64_t journaled;  // progress is logged after each step
    uint64_t commands_done, inferences, read, written, tiles;
    uint64_t* image;  // inferences of it, and their nanoseconds
};

struct Queue {
    uint8_t* ring;
    uint64_t* state;
    uint64_t* spent;  // of its session, at its level
    Prepared* const* prepared;
    uint64_t prepared_count;
    uint64_t slots;
    uint64_t completed;
    uint64_t poisoned;
    uint64_t ran_ns;
    uint64_t logged_waiting;
    uint64_t step;   // where Python has to continue the next submission
    uint64_t found;  // index of the last one of `prepared`
    uint32_t level;
    int32_t doorbell;
    uint32_t turbo;
    uint32_t awake;
    uint32_t whole;  // all queues of its context are here: a doorbell concerns no other
    uint32_t shown;  // in the ring: where the engine runs
};

// The addresses of the device's counters in the status page.
struct Counters {
    uint64_t *heartbeat, *submissions, *commands, *inferences, *busy, *tile_busy, *read, *written, *queued;
    uint64_t* histogram;  // of inferences
    const uint64_t* bounds;
    uint64_t bound_count;
};

constexpr size_t EVENTS = 64;
constexpr int32_t CALLED = 1;  // not 0, which an exception in Python would return

struct Call {
    Queue* const* queues;
    uint64_t count;
    Counters counters;
    int32_t (*infer)(void*);  // of OpenVINO's interface for C: 0 when the outputs are there
    // an inference in Python: `CALLED` when the outputs are there
    int32_t (*call)(void*);
    const uint64_t* injections;
    uint64_t injections_seen;
    uint64_t min_spent_ns[4];  // of the scheduler, by level
    double ns_per_tick;
    uint64_t spin_ns;  // the longest busy wait; 0: none
    uint64_t misses, skipped;
    uint64_t counted_due_ns, poll_due_ns, idle_due_ns;
    uint64_t cpu_ns;  // CPU time of this process at the last reading
    uint64_t done;    // submissions that have ended in this call
    int32_t epoll;
    uint32_t event_count;
    int32_t events[EVENTS];
};

uint64_t now_ns();

// Runs the next submission of a queue, a prepared one, to its end; false if Python has to run it, from
// `queue.step` on: it was not prepared, has changed since, ends without running, or an inference failed.
bool run_next(Call& call, Queue& queue);

}  // namespace softnpu::engine

extern "C" {
// The number of `VERSION` in native_library.py.
int softnpu_engine_version();
// Runs submissions until something else has to be done: 1 if that is to handle `events`, of which none was
// handled, or to put some of many queues to sleep; 0 if Python has to choose or run the next submission.
int softnpu_fast_path(softnpu::engine::Call* call);
// Sizes of `Step`, `Prepared`, `Queue`, `Call`: they must be those of Python.
void softnpu_fast_path_sizes(uint64_t sizes[4]);
}
