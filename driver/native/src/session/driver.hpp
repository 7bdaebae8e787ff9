// `ze_driver_handle_t`: the session of this process with one daemon, and its devices.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/handles.hpp"
#include "session/connection.hpp"

namespace softnpu {

// One device as the handshake lists it.
struct DeviceInfo {
    uint32_t index = 0;
    std::string platform;
    std::string name;
    uint32_t device_id = 0;
    uint32_t revision = 0;
    uint32_t tiles = 0;
    uint32_t slices = 0;
    uint32_t simd_width = 0;
    uint32_t eus_per_subslice = 0;
    uint32_t core_clock_mhz = 0;
    double timer_ns_per_tick = 1;
    uint64_t memory_total = 0;
    std::string uuid;
    bool has_modelled_clock = false;  // its timestamps are those of silicon, not of the host
};

// The answer `compiler_options_answer`, requested once a device.
struct CompilerInfo {
    uint16_t major = 0;
    uint16_t minor = 0;
    uint32_t opset = 0;
    std::string options;  // names, with blanks between them
};

class Driver;

class Device : public Object {
public:
    static constexpr Kind KIND = Kind::device;
    Device(std::shared_ptr<Driver> driver, DeviceInfo info);

    const DeviceInfo info;
    const std::shared_ptr<Connection> connection;

    CompilerInfo compiler();
    // Whether the compiler knows an option and, if one is given, accepts this value of it.
    bool supports(const char* option, const char* value);
    // How long its engine has worked since the daemon started. DEVICE_LOST when the daemon is gone.
    uint64_t busy_ns();
    // Its modelled clock. DEVICE_LOST when the daemon is gone.
    uint64_t modelled_clock_ns();
    // The handle of its engine group for sysman, made by `make` at the first call.
    template <class Make>
    uint64_t engine_handle(Make&& make) {
        std::lock_guard lock(mutex_);
        if (engine_ == 0) engine_ = make();
        return engine_;
    }

    // The handles of its metric groups, made by `make` at the first call.
    template <class Make>
    const std::vector<uint64_t>& metric_groups(Make&& make) {
        std::lock_guard lock(mutex_);
        if (metric_groups_.empty()) metric_groups_ = make();
        return metric_groups_;
    }

private:
    uint64_t status_word(std::string_view name);

    std::mutex mutex_;
    uint64_t engine_ = 0;
    std::vector<uint64_t> metric_groups_;
    bool asked_ = false;
    CompilerInfo compiler_;
};

class Driver : public Object {
public:
    static constexpr Kind KIND = Kind::driver;
    Driver(std::shared_ptr<Connection> connection, uint32_t command_buffer)
        : connection(std::move(connection)), command_buffer_limit(command_buffer) {}

    const std::shared_ptr<Connection> connection;
    const uint32_t command_buffer_limit;
    std::vector<std::shared_ptr<Device>> devices;
    std::vector<uint64_t> device_handles;
};

// A session with the daemon; its devices have no handles yet.
std::shared_ptr<Driver> connect_driver();

// Writes the reason of a failed initialisation to stderr, once.
void log_failure(const Error& failure);

}  // namespace softnpu
