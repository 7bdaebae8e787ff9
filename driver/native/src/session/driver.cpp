#include "session/driver.hpp"

#include <errno.h>

#include <cstdlib>

#include "base/environment.hpp"
#include "base/log.hpp"
#include "base/runtime.hpp"
#include "session/launch.hpp"
#include "sync/spin.hpp"

namespace softnpu {

namespace {

constexpr uint32_t MAJOR = 1;
constexpr uint32_t MINOR = 0;

DeviceInfo device_info(const Value& value) {
    DeviceInfo info;
    info.index = static_cast<uint32_t>(value.integer("index"));
    info.platform = value.string("platform");
    info.name = value.string("name");
    info.device_id = static_cast<uint32_t>(value.integer("device_id"));
    info.revision = static_cast<uint32_t>(value.integer("revision"));
    info.tiles = static_cast<uint32_t>(value.integer("tiles"));
    info.slices = static_cast<uint32_t>(value.integer("slices"));
    info.simd_width = static_cast<uint32_t>(value.integer("simd_width"));
    info.eus_per_subslice = static_cast<uint32_t>(value.integer("eus_per_subslice"));
    info.core_clock_mhz = static_cast<uint32_t>(value.integer("core_clock_mhz"));
    if (const Value* const ticks = value.find("timer_ns_per_tick")) info.timer_ns_per_tick = ticks->as_real();
    info.memory_total = value.integer("memory_total");
    info.uuid = value.string("uuid");
    return info;
}

// `ZE_AFFINITY_MASK`, as Level Zero has it: the numbers of the devices that this process sees, with commas
// between them; without it all. Programs that take the first device choose with it.
bool in_affinity_mask(uint32_t index) {
    const char* const mask = variable("ZE_AFFINITY_MASK");
    if (mask == nullptr || *mask == '\0') return true;
    const std::string wanted = "," + std::string(mask) + ",";
    return wanted.find(format(",%u,", index)) != std::string::npos;
}

Error other_version(const std::string& found) {
    return unsupported_version(
        "firmware interface", found,
        format("interface %u.x, which this library (softnpu 0.1, interface %u.%u) speaks", MAJOR, MAJOR,
               MINOR),
        "install library and daemon of one softnpu, and restart the daemon");
}

struct Session {
    std::shared_ptr<Connection> connection;
    Answer welcome;
};

Session say_hello() {
    MapWriter hello("hello");
    hello.put("major", MAJOR)
        .put("minor", MINOR)
        .put("client", std::string_view(program_invocation_short_name));
    Launch launch;
    for (;;) {
        auto connection = std::make_shared<Connection>(launch.connect(), launch.path());
        try {
            Answer welcome = connection->request(hello, "welcome");
            return {std::move(connection), std::move(welcome)};
        } catch (const Error& failure) {
            if (failure.result() == ZE_RESULT_ERROR_UNSUPPORTED_VERSION)
                throw other_version(failure.info().text());
            // a daemon that ended meanwhile has not noticed this client
            if (!connection->was_closed() || !launch.may_try_again()) throw;
        }
    }
}

std::shared_ptr<Driver> connect() {
    SpinBudget::check_environment();
    auto [connection, welcome] = say_hello();
    const uint64_t major = welcome.fields.integer("major");
    if (major != MAJOR) {
        throw other_version(format("the daemon (%s) speaks %lu.%lu", welcome.fields.string("server").c_str(),
                                   major, welcome.fields.integer("minor")));
    }
    const Value* const limits = welcome.fields.find("limits");
    const uint64_t largest = limits == nullptr ? 0 : limits->integer("command_buffer");
    auto driver = std::make_shared<Driver>(connection, static_cast<uint32_t>(largest));
    for (const Value& entry : welcome.fields.array("devices")) {
        auto device = std::make_shared<Device>(driver, device_info(entry));
        if (in_affinity_mask(device->info.index)) driver->devices.push_back(std::move(device));
    }
    return driver;
}

}  // namespace

Device::Device(std::shared_ptr<Driver> driver, DeviceInfo info)
    : Object(driver), info(std::move(info)), connection(driver->connection) {}

CompilerInfo Device::compiler() {
    std::lock_guard lock(mutex_);
    if (!asked_) {
        MapWriter question("compiler_options");
        question.put("device", info.index);
        const Answer answer =
            connection->request(question, "compiler_options_are", 0, {}, Patience::compiler);
        compiler_.major = static_cast<uint16_t>(answer.fields.integer("major"));
        compiler_.minor = static_cast<uint16_t>(answer.fields.integer("minor"));
        compiler_.opset = static_cast<uint32_t>(answer.fields.integer("opset"));
        for (const Value& option : answer.fields.array("options")) {
            compiler_.options += (compiler_.options.empty() ? "" : " ") + option.text;
        }
        asked_ = true;
    }
    return compiler_;
}

uint64_t Device::busy_ns() {
    const Answer answer = connection->request(MapWriter("status"), "status_is");
    const std::vector<Value>& engines = answer.fields.array("engines");
    return info.index < engines.size() ? engines[info.index].integer("busy_ns") : 0;
}

uint64_t open_driver() {
    Runtime& here = runtime();
    std::lock_guard lock(here.driver_mutex);
    if (here.driver != nullptr && !here.driver->connection->is_lost()) return here.driver_handle;
    std::shared_ptr<Driver> made = connect();
    // objects of a session that was lost stay as they are: every call on them says so
    const uint64_t handle = here.handles.add(Kind::driver, made);
    for (const auto& device : made->devices) {
        made->device_handles.push_back(here.handles.add(Kind::device, device));
    }
    here.driver = std::move(made);
    here.driver_handle = handle;
    return handle;
}

void log_failure(const Error& failure) { log_once(failure.info().text()); }

}  // namespace softnpu
