// The state of the driver in this process: its handles and its session.
//
// Never destroyed, because programs call the driver from destructors of their own static objects. A forked
// child starts with a new runtime: it must not use the parent's rings, fences and socket.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "base/handles.hpp"
#include "session/check.hpp"

namespace softnpu {

class Driver;

class Runtime {
public:
    explicit Runtime(uint8_t epoch) : handles(epoch), epoch(epoch) {}

    HandleTable handles;
    const uint8_t epoch;

    // The driver of this process and its handle; null before the first initialisation.
    std::mutex driver_mutex;
    std::shared_ptr<Driver> driver;
    uint64_t driver_handle = 0;
};

// The runtime of this process.
Runtime& runtime();

// The object of a handle. A loader that wraps handles does not unwrap them in calls of extension tables: it
// is asked for the original.
std::shared_ptr<Object> find_object(Kind kind, uint64_t handle);

template <class T, class H>
std::shared_ptr<T> lookup(H handle) {
    return std::static_pointer_cast<T>(find_object(T::KIND, reinterpret_cast<uint64_t>(handle)));
}

template <class H, class T>
H new_handle(std::shared_ptr<T> object) {
    if (check::on()) check::made(T::KIND, *object);
    return reinterpret_cast<H>(runtime().handles.add(T::KIND, std::move(object)));
}

template <class T, class H>
std::shared_ptr<T> remove(H handle) {
    if (check::on()) check::ended(T::KIND, *lookup<T>(handle));
    return std::static_pointer_cast<T>(runtime().handles.remove(T::KIND, reinterpret_cast<uint64_t>(handle)));
}

}  // namespace softnpu
