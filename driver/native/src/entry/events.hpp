// The events that an append brings.
#pragma once

#include "commands/event.hpp"
#include "commands/list.hpp"
#include "session/runtime.hpp"

namespace softnpu {

inline std::vector<std::shared_ptr<Event>> wait_events(uint32_t count, ze_event_handle_t* handles) {
    std::vector<std::shared_ptr<Event>> events;
    for (uint32_t index = 0; index < count; ++index) events.push_back(lookup<Event>(handles[index]));
    return events;
}

// INVALID_SIZE for a count without an array.
inline Events events_of(ze_event_handle_t signal, uint32_t count, ze_event_handle_t* waits) {
    if (count > 0 && waits == nullptr) {
        throw invalid_size("wait events", format("%u without an array", count), "an array with the events");
    }
    return {wait_events(count, waits), signal == nullptr ? nullptr : lookup<Event>(signal)};
}

}  // namespace softnpu
