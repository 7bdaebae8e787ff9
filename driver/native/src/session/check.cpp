#include "session/check.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/environment.hpp"
#include "base/error_info.hpp"
#include "session/check_state.hpp"
#include "session/trace.hpp"

namespace softnpu::check {

namespace {

const char* kind_of(Kind kind) {
    switch (kind) {
        case Kind::context: return "context";
        case Kind::command_queue: return "queue";
        case Kind::command_list: return "list";
        case Kind::fence: return "fence";
        case Kind::event_pool: return "event pool";
        case Kind::event: return "event";
        case Kind::graph: return "graph";
        default: return nullptr;
    }
}

// Frames name the program as it was called.
std::string program_file() {
    char path[4096];
    const ssize_t size = readlink("/proc/self/exe", path, sizeof path);
    return size < 0 ? std::string() : std::string(path, static_cast<size_t>(size));
}

}  // namespace

std::atomic<bool> active{false};

void begin(uint64_t session, const std::string& folder) noexcept {
    if (notes == nullptr && folder.empty()) return;
    if (is_privileged()) return;  // the user's daemon chooses the folder
    try {
        start();
        {
            std::lock_guard lock(notes->mutex);
            if (notes->folder != folder) change_folder(folder);
            notes->session = session;
            if (notes->file < 0) return;
        }
        noting([&] {
            Line("session")
                .put("session", session)
                .put("pid", static_cast<uint64_t>(getpid()))
                .put("program", std::string(program_invocation_short_name))
                .put("file", program_file())
                .write();
        });
        active = true;
        trace::joined |= trace::CHECKED;
    } catch (const Error& error) {
        log_once("softnpu check: this program is not checked: " + error.info().text());
    } catch (...) {
    }
}

void forget_in_child() noexcept {
    notes = nullptr;  // the parent's stay: their lock may be held
    active = false;
}

void made(Kind kind, const Object& object) noexcept {
    const char* const name = kind_of(kind);
    if (name == nullptr) return;
    noting([&] {
        const Object::Noted noted = object.noted();
        notes->numbers.erase(&object);  // of another one that lay there
        Line("made")
            .put("session", notes->session)
            .put("kind", std::string(name))
            .put("id", number_of(object))
            .put("site", site())
            .put("memory", noted.memory)
            .put("offset", noted.offset)
            .put("parent", noted.parent == nullptr ? 0 : number_of(*noted.parent))
            .write();
    });
}

void ended(Kind kind, const Object& object, bool reset) noexcept {
    const char* const name = kind_of(kind);
    if (name == nullptr) return;
    noting([&] {
        Line("ended")
            .put("session", notes->session)
            .put("kind", std::string(name))
            .put("id", number_of(object))
            .put("site", site())
            .raw("reset", reset ? "true" : "false")
            .write();
    });
    ask();
}

void foreign_handle(const char* kind) noexcept {
    const std::string* const folder = noted_in.load();
    if (folder == nullptr) return;
    try {
        start();
        locked([&] {
            if (notes->folder != *folder) change_folder(*folder);
        });
        noting([&] {
            Line("foreign_handle")
                .put("pid", static_cast<uint64_t>(getpid()))
                .put("parent", static_cast<uint64_t>(getppid()))
                .put("program", std::string(program_invocation_short_name))
                .put("call", std::string(trace::current_call()))
                .put("kind", std::string(kind))
                .put("site", site())
                .write();
        });
        ask();
    } catch (...) {
    }
}

Append append() noexcept {
    Append made{trace::current_call(), 0};
    noting([&] { made.site = site(); });
    return made;
}

void out_of_bounds(uint64_t memory, uint64_t offset, uint64_t end, uint64_t size, bool write) noexcept {
    noting([&] {
        Line("out_of_bounds")
            .put("session", notes->session)
            .put("memory", memory)
            .put("offset", offset)
            .put("end", end)
            .put("size", size)
            .raw("write", write ? "true" : "false")
            .put("call", std::string(trace::current_call()))
            .put("site", site())
            .write();
    });
    ask();
}

std::shared_ptr<const Recording> recorded(const Object& list, const std::vector<Append>& appends,
                                          std::vector<std::pair<const uint8_t*, Denied>> uses,
                                          const std::vector<Signal>& signals) noexcept {
    std::shared_ptr<const Recording> result;
    noting([&] {
        auto recording = std::make_shared<Recording>();
        recording->list = number_of(list);
        recording->number = ++notes->last;
        recording->uses = std::move(uses);
        for (const auto& [address, denied] : recording->uses)
            if (denied == EVERYTHING) expect(address);
        std::string calls, places;
        for (const Signal& each : signals)
            places += (places.empty() ? "[" : ",[") + std::to_string(each.command) + "," +
                      std::to_string(each.memory) + "," + std::to_string(each.offset) + "]";
        for (const Append& each : appends)
            calls += (calls.empty() ? "[" : ",[") + quoted(each.call) + "," + std::to_string(each.site) + "]";
        Line("recorded")
            .put("session", notes->session)
            .put("list", recording->list)
            .put("recording", recording->number)
            .raw("calls", "[" + calls + "]")
            .raw("signals", "[" + places + "]")
            .write();
        result = std::move(recording);
    });
    return result;
}

void submitted(uint64_t queue, uint64_t first, const std::vector<std::shared_ptr<const Recording>>& lists,
               const Object* fence) noexcept {
    noting([&] {
        std::string recordings;
        uint64_t sequence = first;
        for (const auto& list : lists) {
            const Recording none, &each = list == nullptr ? none : *list;
            recordings += (recordings.empty() ? "[" : ",[") + std::to_string(each.list) + "," +
                          std::to_string(each.number) + "]";
            for (const auto& [address, denied] : each.uses) {
                const auto watched = notes->slots.find(address);
                if (watched == notes->slots.end()) continue;
                watched->second.unused = false;
                int& mode = notes->uses[address][{queue, sequence}];
                mode = std::max<int>(mode, denied);
                notes->in_flight[queue].emplace_back(sequence, address);
                apply(address);
            }
            ++sequence;
        }
        notes->tails[queue] = sequence - 1;
        Line("submitted")
            .put("session", notes->session)
            .put("queue", queue)
            .put("first", first)
            .raw("recordings", "[" + recordings + "]")
            .put("site", site())
            .put("fence", fence == nullptr ? 0 : number_of(*fence))
            .write();
    });
    ask();
}

void completed(uint64_t queue, uint64_t sequence) noexcept {
    if (sequence == 0) return;
    noting([&] {
        allow(queue, sequence);
        Line("completed")
            .put("session", notes->session)
            .put("queue", queue)
            .put("sequence", sequence)
            .write();
    });
    ask();
}

void rewaited(uint64_t queue, uint64_t sequence) noexcept {
    noting([&] {
        // once for each later submission: programs poll
        const uint64_t tail = notes->tails[queue];
        if (std::exchange(notes->rewaits[{queue, sequence}], tail) == tail) return;
        Line("rewaited")
            .put("session", notes->session)
            .put("queue", queue)
            .put("sequence", sequence)
            .put("site", site())
            .write();
    });
}

void timed_out(uint64_t queue, uint64_t sequence, uint64_t since) noexcept {
    noting([&] {
        Line("timed_out")
            .put("session", notes->session)
            .put("since", since)
            .put("call", std::string(trace::current_call()))
            .put("queue", queue)
            .put("sequence", sequence)
            .put("site", site())
            .write();
    });
}

void event(const Object& event, const char* what) noexcept {
    noting([&] {
        const Object::Noted noted = event.noted();
        Line("event")
            .put("session", notes->session)
            .put("id", number_of(event))
            .put("memory", noted.memory)
            .put("offset", noted.offset)
            .put("what", std::string(what))
            .put("site", site())
            .write();
        if (std::strcmp(what, "seen") != 0) return;
        // it may be the end of anything in flight
        for (auto& [queue, flight] : notes->in_flight) allow(queue, UINT64_MAX);
    });
    ask();
}

}  // namespace softnpu::check
