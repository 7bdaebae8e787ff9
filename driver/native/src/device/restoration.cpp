#include "device/restoration.hpp"

#include "commands/queue.hpp"
#include "device/context.hpp"
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

void replace_context(HandleTable& handles, uint64_t handle, const std::shared_ptr<Driver>& driver) {
    const auto lost = std::static_pointer_cast<Context>(handles.get(Kind::context, handle));
    const auto context = Context::create_after(lost, driver);
    handles.replace(Kind::context, handle, context);
    for (const uint64_t each : handles.owned_by(Kind::command_queue, lost)) {
        // OpenVINO gives a model the queue of another one that lives
        const auto queue = std::static_pointer_cast<CommandQueue>(handles.get(Kind::command_queue, each));
        handles.replace(Kind::command_queue, each, CommandQueue::create_after(queue, context));
    }
}

void replace_all(HandleTable& handles, uint64_t handle, const std::shared_ptr<Driver>& lost,
                 const std::shared_ptr<Driver>& driver) {
    driver->device_handles = lost->device_handles;
    for (size_t at = 0; at < driver->devices.size(); ++at)
        handles.replace(Kind::device, driver->device_handles[at], driver->devices[at]);
    handles.replace(Kind::driver, handle, driver);
    for (const uint64_t context : handles.owned_by(Kind::context, lost)) {
        try {
            replace_context(handles, context, driver);
        } catch (const Error&) {
            // it was destroyed meanwhile, or stays lost
        }
    }
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
        if (!here.driver->connection->was_closed()) return;  // the program is told what it has closed
    }
    try {
        open_driver();
    } catch (const Error&) {
        // the call itself says that the device is lost
    }
}

}  // namespace softnpu
