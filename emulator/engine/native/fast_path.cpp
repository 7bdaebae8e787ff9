#include "fast_path.hpp"

#include <sys/epoll.h>
#include <time.h>

#include <algorithm>

#include "interface/schema.hpp"
#include "interface/words.hpp"
#include "workers.hpp"

namespace softnpu::engine {

namespace {

namespace ring = schema::ring_header;

// Same as in engine.py, queue_table.py, counters.py, scheduler.py and spin.py.
constexpr uint64_t POLL_EVERY_NS = 20000, COUNT_EVERY_NS = 1000000, IDLE_CHECK_NS = 20000000;
constexpr uint64_t TURBO_SPIN_NS = 15000000, MAX_LAG_NS = 1000000;
constexpr uint64_t IDLE_CHECK_OF_ONE_NS = 500000;  // of which a return to Python takes 10 us for a queue
constexpr uint64_t MAX_MISSES = 8, RETRY_EVERY = 32, FEW = 8;
constexpr int POLLS = 16;  // polls of the rings between two readings of the clock
constexpr int FEW_VAIN = 8;
constexpr timespec NAP{0, 50000};

struct Queues {
    Queue* const* first;
    Queue* const* last;
    Queue* const* begin() const { return first; }
    Queue* const* end() const { return last; }
};

class Loop {
public:
    explicit Loop(Call& call) : call_(call), queues_{call.queues, call.queues + call.count} {}

    ~Loop() {
        for (Queue* queue : queues_) show(*queue, 0);
    }

    bool run() {
        for (;;) {
            Queue* queue = nullptr;
            if (!pick(queue)) return false;
            show_all(queue);
            if (!queue) {
                const Spun spun = spin();
                if (spun == Spun::EVENTS || (spun == Spun::NOTHING && !sleep())) return true;
                continue;
            }
            vain_ = 0;
            // an announced one applies from the next submission on
            if (__atomic_load_n(call_.injections, __ATOMIC_ACQUIRE) != call_.injections_seen) return false;
            if (!run_next(call_, *queue)) return false;
            const uint64_t now = now_ns();
            if (now >= call_.counted_due_ns) count(now);
            if (now >= call_.poll_due_ns && !poll(0)) return true;
            if (call_.count > FEW && now >= call_.idle_due_ns) {
                call_.idle_due_ns = now + IDLE_CHECK_NS + call_.count * IDLE_CHECK_OF_ONE_NS;
                return true;
            }
        }
    }

private:
    template <typename Test>
    bool any(Test test) const {
        return std::any_of(queues_.begin(), queues_.end(), [&](const Queue* queue) { return test(*queue); });
    }
    static uint64_t tail(const Queue& queue) { return load64(queue.ring + ring::TAIL); }
    static bool pending(const Queue& queue) { return tail(queue) != queue.completed; }
    static void set_asleep(Queue& queue, bool asleep) {
        queue.awake = !asleep;
        store32(queue.ring + ring::ASLEEP, asleep);
    }

    static void show(Queue& queue, uint32_t core) {
        if (queue.shown == core) return;
        queue.shown = core;
        store32(queue.ring + ring::ENGINE_CORE, core);
    }

    // Tells drivers whether and where their submissions run: what waits behind `next` need not be polled for.
    void show_all(const Queue* next) {
        core_ = this_core();
        for (Queue* queue : queues_) {
            if (next == nullptr || queue == next)
                show(*queue, core_);
            else if (queue->shown != BUSY && (pending(*queue) || queue == last_))
                show(*queue, BUSY);
        }
        last_ = next;
    }

    // The queue that runs next, if any has work; false if the scheduler in Python has to decide.
    bool pick(Queue*& best) {
        for (Queue* queue : queues_) {
            if (!queue->awake || !pending(*queue)) continue;
            if (best && best->level != queue->level) return false;
            if (!best || *queue->spent < *best->spent ||
                (*queue->spent == *best->spent && queue->ran_ns < best->ran_ns))
                best = queue;
        }
        if (best) {
            uint64_t &spent = *best->spent, &least = call_.min_spent_ns[best->level];
            if (spent > least)
                least = spent;
            else if (least > MAX_LAG_NS && spent < least - MAX_LAG_NS)
                spent = least - MAX_LAG_NS;
        }
        return true;
    }

    uint64_t log_waiting(Queue& queue) {
        const uint64_t waiting = std::min(tail(queue) - queue.completed, queue.slots);
        if (waiting != queue.logged_waiting)
            __atomic_store_n(&queue.state[STATE_WAITING], queue.logged_waiting = waiting, __ATOMIC_RELEASE);
        return waiting;
    }

    void count(uint64_t now) {
        uint64_t waiting = 0;
        for (Queue* queue : queues_)
            if (queue->awake) waiting += log_waiting(*queue);
        __atomic_store_n(call_.counters.heartbeat, now, __ATOMIC_RELEASE);
        __atomic_store_n(call_.counters.queued, waiting, __ATOMIC_RELEASE);
        call_.counted_due_ns = now + COUNT_EVERY_NS;
    }

    // Waits for events; false for any but the doorbell of a context whose queues are all here.
    bool poll(int timeout_ms) {
        epoll_event found[EVENTS];
        const int count = epoll_wait(call_.epoll, found, EVENTS, timeout_ms);
        call_.poll_due_ns = now_ns() + POLL_EVERY_NS;
        if (count == 0) return true;
        bool all_known = count > 0;
        for (int index = 0; index < count; ++index) {
            call_.events[index] = found[index].data.fd;
            all_known = all_known && is_known(found[index].data.fd);
        }
        if (!all_known) {
            call_.event_count = static_cast<uint32_t>(std::max(count, 0));
            return false;
        }
        for (int index = 0; index < count; ++index)
            for (Queue* queue : queues_)
                if (queue->doorbell == call_.events[index] && !queue->awake && pending(*queue))
                    set_asleep(*queue, false);
        return true;
    }

    bool is_known(int doorbell) const {
        return any([&](const Queue& queue) { return queue.doorbell == doorbell && queue.whole; });
    }

    uint64_t spin_limit() {
        if (any([](const Queue& queue) { return queue.awake && queue.turbo; })) return TURBO_SPIN_NS;
        if (call_.misses < MAX_MISSES) return call_.spin_ns;
        return ++call_.skipped % RETRY_EVERY == 0 ? call_.spin_ns : 0;
    }

    enum class Spun { WORK, NOTHING, EVENTS };

    // Polls the awake rings for a bounded time.
    Spun spin() {
        if (!any([](const Queue& queue) { return queue.awake != 0; })) return Spun::NOTHING;
        const uint64_t limit = spin_limit();
        if (!limit) return Spun::NOTHING;
        // a client here cannot submit meanwhile; once, because others may be here as well
        if (any([this](const Queue& queue) { return load32(queue.ring + ring::DRIVER_CORE) == core_; }))
            sched_yield();
        const uint64_t end = now_ns() + limit;
        for (uint64_t now = 0; now < end; now = now_ns()) {
            for (int turn = 0; turn < POLLS; ++turn) {
                for (Queue* queue : queues_) {
                    if (!queue->awake || !pending(*queue)) continue;
                    call_.misses = 0;
                    return Spun::WORK;
                }
                pause_core();
            }
            if (now >= call_.poll_due_ns && !poll(0)) return Spun::EVENTS;
        }
        ++call_.misses;
        return Spun::NOTHING;
    }

    // Puts every ring to sleep, checks again, then waits; false if Python has to handle the event.
    bool sleep() {
        for (Queue* queue : queues_) {
            if (!queue->awake) continue;
            log_waiting(*queue);
            set_asleep(*queue, true);
        }
        // a driver stores its tail and then reads `asleep`; here it is the other way round
        full_fence();
        bool woken = false;
        for (Queue* queue : queues_) {
            if (!pending(*queue)) continue;
            set_asleep(*queue, false);
            woken = true;
        }
        if (woken) return true;
        count(now_ns());
        // a doorbell that is rung in vain all the time would keep a core from who has work
        if (++vain_ > FEW_VAIN) nanosleep(&NAP, nullptr);
        return poll(-1);
    }

    Call& call_;
    const Queues queues_;
    uint32_t core_ = 0;
    const Queue* last_ = nullptr;
    int vain_ = 0;  // sleeps since a submission ran
};

}  // namespace

}  // namespace softnpu::engine

int softnpu_fast_path(softnpu::engine::Call* call) {
    call->event_count = 0;
    call->done = 0;
    const bool is_brief = softnpu::engine::Loop(*call).run();
    softnpu::engine::workers::wake();
    return is_brief;
}

int softnpu_engine_version() { return 7; }

void softnpu_fast_path_sizes(uint64_t sizes[4]) {
    using namespace softnpu::engine;
    sizes[0] = sizeof(Step), sizes[1] = sizeof(Prepared), sizes[2] = sizeof(Queue), sizes[3] = sizeof(Call);
}
