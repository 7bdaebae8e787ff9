#include "session/driver.hpp"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/environment.hpp"
#include "interface/schema.hpp"
#include "interface/words.hpp"
#include "session/check.hpp"
#include "session/launch.hpp"
#include "session/trace.hpp"
#include "session/waiting.hpp"

namespace softnpu {

using namespace schema;

namespace {

DeviceInfo read_device(const Value& value) {
    DeviceInfo info;
    info.index = value.integer32(device_info::INDEX);
    info.platform = value.string(device_info::PLATFORM);
    info.name = value.string(device_info::NAME);
    info.device_id = value.integer32(device_info::DEVICE_ID);
    info.revision = value.integer32(device_info::REVISION);
    info.tiles = value.integer32(device_info::TILES);
    info.slices = value.integer32(device_info::SLICES);
    info.simd_width = value.integer32(device_info::SIMD_WIDTH);
    info.eus_per_subslice = value.integer32(device_info::EUS_PER_SUBSLICE);
    info.core_clock_mhz = value.integer32(device_info::CORE_CLOCK_MHZ);
    if (const Value* const ticks = value.find(device_info::TIMER_NS_PER_TICK))
        info.timer_ns_per_tick = ticks->as_real();
    info.memory_total = value.integer(device_info::MEMORY_TOTAL);
    info.uuid = value.string(device_info::UUID);
    const Value* const clock = value.find(device_info::CLOCK);
    info.has_modelled_clock = clock != nullptr && clock->text != "host";
    return info;
}

// Whether `ZE_AFFINITY_MASK`, a list of device numbers with commas, contains this one; without it all do.
bool in_affinity_mask(uint32_t index) {
    const char* const mask = variable("ZE_AFFINITY_MASK");
    if (mask == nullptr || *mask == '\0') return true;
    const std::string wanted = "," + std::string(mask) + ",";
    return wanted.find(format(",%u,", index)) != std::string::npos;
}

Error other_version(const std::string& found, const std::string& hint) {
    return unsupported_version(
        "firmware interface", found,
        format("interface %u.x, which this library (softnpu " SOFTNPU_VERSION ", interface %u.%u) speaks",
               interface::MAJOR, interface::MAJOR, interface::MINOR),
        hint);
}

// The settings that the daemon must have: variables of interface.md, section 3, as `NAME=value`.
std::vector<std::string> asked_settings() {
    std::vector<std::string> asked;
    for (const std::string_view name : schema::environment::OF_SETTINGS) {
        const char* const value = variable(name.data());
        if (value != nullptr && *value != '\0') asked.push_back(std::string(name) + "=" + value);
    }
    return asked;
}

struct Session {
    std::shared_ptr<Connection> connection;
    Answer welcome;
    bool is_own;  // the daemon is this user's
};

Session say_hello() {
    MapWriter request(hello::TAG);
    request.put(hello::MAJOR, interface::MAJOR)
        .put(hello::MINOR, interface::MINOR)
        .put(hello::CLIENT, program_invocation_short_name);
    std::vector<std::string_view> must;  // an older daemon would show all devices, and compare nothing
    const char* const lease = variable(schema::environment::LEASE);
    if (lease != nullptr && *lease != '\0') {
        request.put(hello::LEASE, lease);
        must.push_back(hello::LEASE);
    }
    const std::vector<std::string> settings = asked_settings();
    if (!settings.empty()) {
        request.put_texts(hello::SETTINGS, {settings.begin(), settings.end()});
        must.push_back(hello::SETTINGS);
    }
    if (!must.empty()) request.put_texts(MUST_FIELD, must);
    Launch launch;
    for (;;) {
        auto connection = std::make_shared<Connection>(launch.connect(), launch.path());
        try {
            Answer answer = connection->request(request, welcome::TAG);
            return {std::move(connection), std::move(answer), launch.is_own()};
        } catch (const Error& failure) {
            if (failure.result() == ZE_RESULT_ERROR_UNSUPPORTED_VERSION)
                throw other_version(failure.info().found + "; the daemon wants " + failure.info().expected,
                                    failure.info().hint);
            // the daemon ended before it read the request
            if (!connection->was_closed() || !launch.may_try_again()) throw;
        }
    }
}

// Maps the daemon's status page, for as long as the process lives: any thread may be reading it.
void watch_page(const std::shared_ptr<Connection>& connection, int file, uint64_t session) noexcept {
    struct stat found {};
    const bool is_known = fstat(file, &found) == 0;
    const auto size = static_cast<size_t>(found.st_size);
    void* const mapped = is_known && size >= status_page::SIZE
                             ? mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0)
                             : MAP_FAILED;
    const auto* const page = mapped == MAP_FAILED ? nullptr : static_cast<const uint8_t*>(mapped);
    trace::watch(connection, page);
    const uint32_t lives = page == nullptr ? 0 : load32(page + status_page::LIVES);
    if (lives == 0) return;  // an older daemon, or one whose kernel has no such words
    const size_t at = load32(page + status_page::LIVES_AT) + session % lives * life::SIZE;
    if (at % life::SIZE == 0 && at + life::SIZE <= size) connection->watch_life(page + at);
}

}  // namespace

Device::Device(std::shared_ptr<Driver> driver, DeviceInfo info)
    : Object(driver), info(std::move(info)), connection(driver->connection) {}

CompilerInfo Device::compiler() {
    std::lock_guard lock(mutex_);
    if (!asked_) {
        MapWriter request(compiler_options::TAG);
        request.put(compiler_options::DEVICE, info.index);
        const Answer answer =
            connection->request(request, compiler_options_answer::TAG, 0, {}, Timeout::compiler);
        compiler_.major = static_cast<uint16_t>(answer.fields.integer(compiler_options_answer::MAJOR));
        compiler_.minor = static_cast<uint16_t>(answer.fields.integer(compiler_options_answer::MINOR));
        compiler_.opset = answer.fields.integer32(compiler_options_answer::OPSET);
        for (const Value& option : answer.fields.array(compiler_options_answer::OPTIONS)) {
            compiler_.options += (compiler_.options.empty() ? "" : " ") + option.text;
        }
        asked_ = true;
    }
    return compiler_;
}

bool Device::supports(const char* option, const char* value) {
    MapWriter request(compiler_options::TAG);
    request.put(compiler_options::DEVICE, info.index).put(compiler_options::OPTION, option);
    if (value != nullptr) request.put(compiler_options::VALUE, value);
    return connection->request(request, compiler_options_answer::TAG, 0, {}, Timeout::compiler)
        .fields.flag(compiler_options_answer::SUPPORTED);
}

uint64_t Device::status_word(std::string_view name) {
    const Answer answer = connection->request(MapWriter(status::TAG), status_answer::TAG);
    const std::vector<Value>& engines = answer.fields.array(status_answer::ENGINES);
    return info.index < engines.size() ? engines[info.index].integer(name) : 0;
}

uint64_t Device::busy_ns() { return status_word(engine_status::BUSY_NS); }

uint64_t Device::modelled_clock_ns() { return status_word(engine_status::DEVICE_CLOCK_NS); }

std::shared_ptr<Driver> connect_driver() {
    SpinBudget::check_environment();
    auto [connection, answer, is_own] = say_hello();
    const uint64_t major = answer.fields.integer(welcome::MAJOR);
    if (major != interface::MAJOR) {
        throw other_version(
            format("the daemon (%s) speaks %lu.%lu", answer.fields.string(welcome::SERVER).c_str(), major,
                   answer.fields.integer(welcome::MINOR)),
            "end it with 'softnpu stop', and install library and daemon of one softnpu");
    }
    const Value* const granted = answer.fields.find(welcome::LIMITS);
    const uint64_t largest = granted == nullptr ? 0 : granted->integer(limits::COMMAND_BUFFER);
    if (!answer.fds.empty()) {
        watch_page(connection, answer.fds.front().get(), answer.fields.integer(welcome::SESSION));
    } else {
        trace::watch(connection, nullptr);
    }
    // what a daemon of another user names is not written to
    check::begin(answer.fields.integer(welcome::SESSION), is_own ? answer.fields.string(welcome::CHECK) : "");
    auto driver = std::make_shared<Driver>(connection, static_cast<uint32_t>(largest));
    for (const Value& entry : answer.fields.array(welcome::DEVICES)) {
        auto device = std::make_shared<Device>(driver, read_device(entry));
        if (in_affinity_mask(device->info.index)) driver->devices.push_back(std::move(device));
    }
    return driver;
}

void log_failure(const Error& failure) { log_once(failure.info().text()); }

}  // namespace softnpu
