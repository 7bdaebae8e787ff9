#include "commands/fence.hpp"

#include "sync/waiting.hpp"

namespace softnpu {

Fence::Fence(std::shared_ptr<CommandQueue> of, bool signalled)
    : Object(of), queue(std::move(of)), place_(queue->context->take_signal()) {
    signal().arm(signalled ? SignalState::host_signalled : SignalState::initial, 0);
}

Fence::~Fence() { queue->retire_signal(std::move(place_), sequence_); }

bool Fence::wait(uint64_t timeout) {
    const uint64_t sequence = sequence_;
    Signal word = signal();
    if (sequence == 0) return word.signalled();
    const auto over = [&] { return word.signalled() || queue->is_over(sequence); };
    const auto sleep = [&](uint64_t ns) { word.sleep(ns); };
    if (!wait_until(over, sleep, timeout, *queue->context->connection, queue->spin)) return false;
    // the device signals the fence before it counts the submission as ended
    if (word.signalled()) {
        const uint32_t result = word.result();
        if (result != ZE_RESULT_SUCCESS) throw queue->failure(result, sequence);
        return true;
    }
    // over without a signal: reset since then, passed over in a broken ring, or the queue is destroyed
    queue->check_alive(sequence);
    return false;
}

void Fence::reset() {
    // work in flight stays attached; what has ended must not signal again after an engine reset
    const uint64_t sequence = sequence_;
    const bool ended = signal().signalled() || queue->is_over(sequence);
    signal().arm(SignalState::host_reset, ended ? 0 : sequence);
}

void Fence::arm(uint64_t sequence) {
    sequence_ = sequence;
    signal().arm(SignalState::host_reset, sequence);
}

void Fence::signal_now() {
    sequence_ = 0;
    signal().host_signal();
}

}  // namespace softnpu
