// After the daemon's death: a session with the next one, behind the handles of driver, devices and contexts.
//
// As after a reset of the real device: earlier objects are lost, and new ones work. A daemon with other
// devices receives new handles instead.
#include "entry/calls.hpp"

#include "commands/queue.hpp"
#include "session/driver.hpp"

namespace softnpu {

namespace {

bool has_the_devices_of(const Driver& driver, const Driver& other) {
    if (driver.devices.size() != other.devices.size()) return false;
    for (size_t at = 0; at < driver.devices.size(); ++at) {
        const DeviceInfo &one = driver.devices[at]->info, &two = other.devices[at]->info;
        if (one.index != two.index || one.platform != two.platform) return false;
    }
    return true;
}

// Puts an object behind the handle of a lost one of its kind, made by `make_after`. Null if that was
// destroyed meanwhile, or cannot be made: then it stays lost, and the others do not.
template <class T, class MakeAfter>
std::shared_ptr<T> replace_one(HandleTable& handles, uint64_t handle, MakeAfter make_after) {
    std::shared_ptr<T> made;
    try {
        made = make_after(std::static_pointer_cast<T>(handles.get(T::KIND, handle)));
        handles.replace(T::KIND, handle, made);
        return made;
    } catch (const Error&) {
        if (made == nullptr) return nullptr;
    }
    try {
        made->retire();
    } catch (const Error&) {
        // the session is lost again, and it with it
    }
    return nullptr;
}

void replace_context(HandleTable& handles, uint64_t handle, const std::shared_ptr<Driver>& driver) {
    std::shared_ptr<Context> lost;
    const auto context = replace_one<Context>(handles, handle, [&](std::shared_ptr<Context> one) {
        lost = std::move(one);
        return Context::create_after(lost, driver);
    });
    if (context == nullptr) return;
    // OpenVINO gives a model the queue of another one that lives
    for (const uint64_t each : handles.owned_by(Kind::command_queue, lost))
        replace_one<CommandQueue>(handles, each, [&](const std::shared_ptr<CommandQueue>& queue) {
            return CommandQueue::create_after(queue, context);
        });
}

void replace_all(HandleTable& handles, uint64_t handle, const std::shared_ptr<Driver>& lost,
                 const std::shared_ptr<Driver>& driver) {
    driver->device_handles = lost->device_handles;
    for (size_t at = 0; at < driver->devices.size(); ++at)
        handles.replace(Kind::device, driver->device_handles[at], driver->devices[at]);
    handles.replace(Kind::driver, handle, driver);
    for (const uint64_t context : handles.owned_by(Kind::context, lost))
        replace_context(handles, context, driver);
}

}  // namespace

uint64_t open_driver() {
    Runtime& here = runtime();
    std::lock_guard lock(here.driver_mutex);
    if (here.driver != nullptr && !here.driver->connection->is_lost()) return here.driver_handle;
    std::shared_ptr<Driver> made = connect_driver();
    if (here.driver != nullptr && has_the_devices_of(*made, *here.driver)) {
        replace_all(here.handles, here.driver_handle, here.driver, made);
    } else {
        here.driver_handle = here.handles.add(Kind::driver, made);
        for (const auto& device : made->devices)
            made->device_handles.push_back(here.handles.add(Kind::device, device));
    }
    here.driver = std::move(made);
    return here.driver_handle;
}

void restore_session() {
    Runtime& here = runtime();
    {
        std::lock_guard lock(here.driver_mutex);
        if (here.driver == nullptr || !here.driver->connection->is_lost()) return;
        if (!here.driver->connection->was_closed()) return;  // the call reports what the program has closed
    }
    try {
        open_driver();
    } catch (const Error&) {
        // the call itself reports that the device is lost
    }
}

}  // namespace softnpu
