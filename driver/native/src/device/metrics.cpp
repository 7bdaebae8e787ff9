#include "device/metrics.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/environment.hpp"

namespace softnpu {

using namespace schema;

namespace {

constexpr const char* ENABLE = "ZET_ENABLE_METRICS";
constexpr size_t SNAPSHOT_SIZE = SNAPSHOT_WORDS * sizeof(uint64_t);

Error not_active(ze_result_t result) {
    return Error({result, "metric group", "not active", "an active one", "activate it"});
}

}  // namespace

bool metrics_enabled() {
    const char* const value = variable(ENABLE);
    return value != nullptr && *value != '\0' && *value != '0';  // as Intel's driver reads it: also "true"
}

// ---------------------------------------------------------------- groups

MetricGroup::MetricGroup(std::shared_ptr<Device> of, const MetricGroupInfo& group, uint32_t domain)
    : Object(of), device(std::move(of)), group(group), domain(domain) {}

bool MetricGroup::active() const { return active_beside(nullptr); }

bool MetricGroup::active_beside(const Context* context) const {
    std::lock_guard lock(mutex_);
    const auto holder = holder_.lock();
    return holder != nullptr && holder.get() != context && !holder->retired();
}

void MetricGroup::activate(const std::shared_ptr<Context>& context) {
    std::lock_guard lock(mutex_);
    holder_ = context;
}

void MetricGroup::deactivate(const Context* context) {
    std::lock_guard lock(mutex_);
    if (holder_.lock().get() == context) holder_.reset();
}

void MetricGroup::check_of(const Context& context) const {
    context.check_session(device->connection);
    if (device == context.device()) return;
    throw invalid_argument(format("metric group %s", group.name), format("of device %u", device->info.index),
                           format("a group of device %u, as the context", context.device()->info.index));
}

std::string MetricGroup::report(const uint64_t* before, const uint64_t* after) const {
    std::string out;
    for (uint32_t number = 0; number < group.count; ++number) {
        const MetricInfo& metric = group.metrics[number];
        uint64_t value = 0;
        for (uint32_t word = 0; word < SNAPSHOT_WORDS; ++word) {
            if (!(metric.words >> word & 1) || after[word] == before[word]) continue;
            value += after[word] - (metric.type == METRIC_TIMESTAMP ? 0 : before[word]);
        }
        out.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    return out;
}

// ---------------------------------------------------------------- queries

MetricQueryPool::MetricQueryPool(std::shared_ptr<Context> of, std::shared_ptr<MetricGroup> counted,
                                 uint32_t count)
    : Object(of),
      context(std::move(of)),
      group(std::move(counted)),
      used_("metric query pool", "query", count) {
    group->check_of(*context);
    if (count == 0) throw invalid_size("metric query pool", "0 queries", "at least 1");
    if (!metrics_enabled()) throw uninitialized("metrics", "not enabled", std::string(ENABLE) + "=1");
    if (!group->active()) throw not_active(ZE_RESULT_NOT_READY);
    block_ = context->memory()->allocate(memory_kind::CONTROL, 2 * SNAPSHOT_SIZE * count);
}

MemoryRef MetricQueryPool::acquire(uint32_t index) {
    if (!group->active()) throw not_active(ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE);
    used_.acquire(index, ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE);
    return {block_, 2 * SNAPSHOT_SIZE * index};
}

MetricQuery::MetricQuery(std::shared_ptr<MetricQueryPool> pool, uint32_t index)
    : Object(pool), pool_(std::move(pool)), index_(index), memory_(pool_->acquire(index)) {
    reset();
}

void MetricQuery::reset() { std::memset(memory_.data(), 0, 2 * SNAPSHOT_SIZE); }

MemoryRef MetricQuery::end() const { return {memory_.block, memory_.offset + SNAPSHOT_SIZE}; }

std::string MetricQuery::data() const {
    uint64_t both[2][SNAPSHOT_WORDS];
    std::memcpy(both, memory_.data(), sizeof both);
    return pool_->group->report(both[0], both[1][0] < both[0][0] ? both[0] : both[1]);
}

// ---------------------------------------------------------------- streamers

MetricStreamer::MetricStreamer(std::shared_ptr<Context> of, std::shared_ptr<MetricGroup> sampled,
                               uint64_t period_ns)
    : Object(of), group(std::move(sampled)), context_(std::move(of)) {
    group->check_of(*context_);
    if (!group->active()) throw not_active(ZE_RESULT_NOT_READY);
    MapWriter request(metric_stream_open::TAG);
    request.put(metric_stream_open::CONTEXT, context_->handle()).put(metric_stream_open::PERIOD, period_ns);
    const Answer answer = context_->connection->request(request, metric_stream_opened::TAG, 1);
    stream_ = answer.fields.integer(metric_stream_opened::STREAM);
    try {
        map_ = map_pages("metric streamer", answer.fds[0].get(), metric_stream::SIZE);
    } catch (const Error&) {
        retire();
        throw;
    }
}

MetricStreamer::~MetricStreamer() {
    if (map_ != nullptr) munmap(const_cast<uint8_t*>(map_), metric_stream::SIZE);
}

void MetricStreamer::retire() {
    retired_ = true;
    const auto& connection = context_->connection;
    if (context_->retired() || connection->is_lost()) return;  // it has ended with its context
    connection->request(MapWriter(metric_stream_close::TAG).put(metric_stream_close::STREAM, stream_),
                        ok::TAG);
}

uint64_t MetricStreamer::samples() const {
    const auto* const word = reinterpret_cast<const uint64_t*>(map_ + metric_stream_header::SAMPLES);
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

void MetricStreamer::copy_sample(uint64_t number, uint64_t* out) const {
    const size_t at = metric_stream_header::SIZE + number % metric_stream::CAPACITY * SNAPSHOT_SIZE;
    std::memcpy(out, map_ + at, SNAPSHOT_SIZE);
}

uint64_t MetricStreamer::available() {
    std::lock_guard lock(mutex_);
    return available_locked();
}

uint64_t MetricStreamer::available_locked() {
    const uint64_t written = samples();
    if (written > next_ + metric_stream::CAPACITY - 2) next_ = written - metric_stream::CAPACITY + 2;
    return written - next_;
}

std::string MetricStreamer::read(uint64_t most) {
    std::lock_guard lock(mutex_);
    for (;;) {
        const uint64_t count = std::min(available_locked(), most);
        const uint64_t first = next_;
        std::string out;
        uint64_t before[SNAPSHOT_WORDS], after[SNAPSHOT_WORDS];
        copy_sample(first - 1, before);
        for (uint64_t number = first; number < first + count; ++number) {
            copy_sample(number, after);
            out += group->report(before, after);
            std::copy(std::begin(after), std::end(after), before);
        }
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        // none was overwritten meanwhile; the sample after the last one may be being written
        if (samples() - first < metric_stream::CAPACITY - 1) {
            next_ = first + count;
            return out;
        }
    }
}

}  // namespace softnpu
