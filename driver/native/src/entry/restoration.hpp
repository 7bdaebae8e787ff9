// After the daemon's death: a session with the next one, behind the handles of driver, devices and contexts.
//
// As after a reset of the real device: what was made before is lost, and what is made from then on works.
// A daemon with other devices gets handles of its own instead.
#pragma once

#include "session/runtime.hpp"

namespace softnpu {

// The driver handle of this process; connects at first, and again after the daemon was lost.
uint64_t open_driver();

// Connects to the next daemon if the last one has died and there is one.
void restore_session();

// The object of a handle through which something is made.
template <class T, class H>
std::shared_ptr<T> lookup_live(H handle) {
    restore_session();
    return lookup<T>(handle);
}

}  // namespace softnpu
