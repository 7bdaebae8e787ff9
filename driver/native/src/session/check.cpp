#include "session/check.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/clock.hpp"
#include "base/environment.hpp"
#include "base/error_info.hpp"
#include "session/trace.hpp"

extern "C" {
int softnpu_watch_install(int file, void* (*thread)(), void (*frames)(int, void*));
long softnpu_watch_add(uintptr_t start, size_t size, size_t guard);
void softnpu_watch_set(long slot, int mode);
void softnpu_watch_remove(long slot, int mapped);
int softnpu_watch_gate(const char* path);
int softnpu_watch_ask();
void softnpu_watch_unmapped(uintptr_t start, size_t size);
}

namespace softnpu::check {

namespace {

constexpr uint64_t UNWRITTEN = 0xA5C3F00D5EED1E55ull;
constexpr int FREED = 3, READING = 4;
constexpr size_t PAGE = 4096;
constexpr uint8_t REST = 0xA5;  // behind the end of an allocation, up to the next page
constexpr int FRAMES = 24, SHOWN = 12;

using GetThread = void* (*)();
using DumpFrames = void (*)(int, void*);

struct Watched {
    long slot;
    size_t size;
    bool shared;         // with other processes
    bool unused = true;  // no submission has used it yet
    bool freed = false;
};

// Never destroyed: programs call the driver from destructors of static objects.
struct Notes {
    std::mutex mutex;
    std::string folder;
    int file = -1;
    uint64_t session = 0;
    uint64_t last = 0;  // number of an object or a recording
    std::unordered_map<const void*, uint64_t> numbers;
    std::map<std::string, uint32_t> sites;
    std::unordered_map<const uint8_t*, Watched> slots;
    std::unordered_map<const uint8_t*, std::map<std::pair<uint64_t, uint64_t>, int>> uses;
    std::map<uint64_t, std::vector<std::pair<uint64_t, const uint8_t*>>> in_flight;
    std::map<uint64_t, uint64_t> tails;                         // the last submission of each queue
    std::map<std::pair<uint64_t, uint64_t>, uint64_t> rewaits;  // what it was when a fence was noted last
    std::atomic<bool> asks{false};
    bool guarded = false;  // the daemon gives allocations whole pages of their own
    int frames = -1;       // where Python writes its frames
    GetThread get_thread = nullptr;
    DumpFrames dump_frames = nullptr;
};

Notes* notes = nullptr;
// The folder of the notes: a forked child reads it without a lock. Never destroyed.
std::atomic<const std::string*> noted_in{nullptr};

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char letter : text) {
        const auto byte = static_cast<unsigned char>(letter);
        if (letter == '"' || letter == '\\') out += '\\';
        if (byte < 0x20) {
            char escaped[8];
            std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
            out += escaped;
        } else {
            out += letter;
        }
    }
    return out + '"';
}

// One line; its fields in the order in which they are put.
class Line {
public:
    explicit Line(const char* tag) : text_("{\"n\":\"" + std::string(tag) + "\"") { put("t", now_ns()); }
    Line& put(const char* name, uint64_t value) { return raw(name, std::to_string(value)); }
    Line& put(const char* name, const std::string& value) { return raw(name, quoted(value)); }
    Line& raw(const char* name, const std::string& value) {
        text_ += ",\"" + std::string(name) + "\":" + value;
        return *this;
    }
    // Called with the lock.
    void write() {
        text_ += "}\n";
        size_t done = 0;
        while (done < text_.size()) {
            const ssize_t written = ::write(notes->file, text_.data() + done, text_.size() - done);
            if (written <= 0) {
                notes->file = -1;  // a cut line is the last one
                log_once("softnpu check: what follows is not checked: " + std::string(std::strerror(errno)));
                return;
            }
            done += static_cast<size_t>(written);
        }
    }

private:
    std::string text_;
};

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

// ---------------------------------------------------------------- places in the program

// The Python frames of this thread, innermost first, if it runs Python. Called with the lock.
void add_python_frames(std::vector<std::string>& frames) {
    if (notes->get_thread == nullptr || notes->dump_frames == nullptr) return;
    void* const thread = notes->get_thread();
    if (thread == nullptr) return;
    const int file = notes->frames;
    if (file < 0 || ftruncate(file, 0) != 0 || lseek(file, 0, SEEK_SET) != 0) return;
    notes->dump_frames(file, thread);
    char text[8192];
    const ssize_t size = pread(file, text, sizeof text - 1, 0);
    if (size <= 0) return;
    text[size] = '\0';
    for (char* line = std::strtok(text, "\n"); line != nullptr; line = std::strtok(nullptr, "\n")) {
        char* const name = std::strstr(line, "File \"");
        char* const number = std::strstr(line, "\", line ");
        char* const function = number == nullptr ? nullptr : std::strstr(number, " in ");
        if (name == nullptr || function == nullptr) continue;
        const std::string place(name + 6, static_cast<size_t>(number - name - 6));
        const std::string at(number + 8, static_cast<size_t>(function - number - 8));
        frames.push_back(place + ":" + at + " " + (function + 4));
        if (frames.size() == SHOWN) return;
    }
}

// The frames outside of this library: module, offset, and the nearest exported name.
void add_native_frames(std::vector<std::string>& frames) {
    void* addresses[FRAMES];
    const int count = backtrace(addresses, FRAMES);
    Dl_info ours{};
    dladdr(reinterpret_cast<void*>(&add_native_frames), &ours);
    for (int index = 0; index < count && frames.size() < SHOWN; ++index) {
        Dl_info info{};
        auto* const address = static_cast<char*>(addresses[index]) - 1;
        if (dladdr(address, &info) == 0 || info.dli_fbase == ours.dli_fbase) continue;
        char offset[32];
        std::snprintf(offset, sizeof offset, "+0x%zx ",
                      static_cast<size_t>(address - static_cast<char*>(info.dli_fbase)));
        std::string name = "?";
        if (info.dli_sname != nullptr) {
            int status = 0;
            char* const readable = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
            name = readable == nullptr ? info.dli_sname : readable;
            std::free(readable);
        }
        frames.push_back(std::string(info.dli_fname == nullptr ? "?" : info.dli_fname) + offset + name);
    }
}

// Called with the lock.
uint32_t site() {
    std::vector<std::string> frames;
    add_python_frames(frames);
    add_native_frames(frames);
    std::string list;
    for (const auto& frame : frames) list += (list.empty() ? "" : ",") + quoted(frame);
    const auto [known, is_new] = notes->sites.emplace(list, static_cast<uint32_t>(notes->sites.size() + 1));
    if (is_new) Line("site").put("site", known->second).raw("frames", "[" + list + "]").write();
    return known->second;
}

// ---------------------------------------------------------------- memory in flight

// Called with the lock.
void apply(const uint8_t* address) {
    const auto slot = notes->slots.find(address);
    if (slot == notes->slots.end()) return;
    int denied = 0;
    const auto uses = notes->uses.find(address);
    if (uses != notes->uses.end()) {
        for (const auto& [submission, mode] : uses->second) denied = std::max(denied, mode);
    }
    softnpu_watch_set(slot->second.slot, denied);
}

bool is_unwritten(const uint8_t* address, size_t size) {
    for (size_t at = 0; at + sizeof UNWRITTEN <= size; at += sizeof UNWRITTEN)
        if (std::memcmp(address + at, &UNWRITTEN, sizeof UNWRITTEN) != 0) return false;
    return true;
}

// Denies reading what a closed list is to write, as long as nobody has written it. Called with the lock.
void expect(const uint8_t* address) {
    const auto found = notes->slots.find(address);
    if (found == notes->slots.end() || !found->second.unused || found->second.shared) return;
    found->second.unused = false;
    if (is_unwritten(address, found->second.size)) softnpu_watch_set(found->second.slot, READING);
}

// Where behind its end the program has written, counted from its beginning; 0: nowhere.
size_t written_behind(const uint8_t* address, size_t size) {
    for (size_t at = size; at % PAGE != 0; ++at)
        if (address[at] != REST) return at;
    return 0;
}

// Called with the lock.
void allow(uint64_t queue, uint64_t sequence) {
    auto& flight = notes->in_flight[queue];
    std::vector<std::pair<uint64_t, const uint8_t*>> left;
    for (const auto& [number, address] : flight) {
        if (number > sequence) {
            left.emplace_back(number, address);
            continue;
        }
        const auto uses = notes->uses.find(address);
        if (uses == notes->uses.end()) continue;
        uses->second.erase({queue, number});
        apply(address);
    }
    flight.swap(left);
}

// Called with the lock. Throws why there is no file.
int open_file(const std::string& role, const std::string& name) {
    const std::string path = notes->folder + "/" + role + "-" + name;
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) throw out_of_host_memory(path, errno_text(errno), "a file for notes");
    return file;
}

// Called with the lock. From now on notes are of another daemon, or of none.
void change_folder(const std::string& folder) {
    for (auto& [queue, flight] : notes->in_flight) allow(queue, UINT64_MAX);
    if (notes->file >= 0) close(notes->file);
    notes->file = -1;
    notes->sites.clear();
    notes->tails.clear();
    notes->rewaits.clear();
    notes->folder = folder;
    notes->guarded = false;
    noted_in = folder.empty() ? nullptr : new std::string(folder);  // the one before may be read
    if (folder.empty()) return;
    // pids are used again
    const std::string key = std::to_string(getpid()) + "-" + std::to_string(now_ns()) + "n";
    const int touched = open_file("touched", key + ".txt");
    notes->file = open_file("client", key + ".jsonl");
    softnpu_watch_install(touched, notes->get_thread, notes->dump_frames);
    const int mode = softnpu_watch_gate((folder + "/gate").c_str());
    notes->asks = mode == 't';
    if (mode == 'p')
        log_once("softnpu check: pdb stops programs of the Python driver; --debugger gdb stops this one");
}

// After a note, without the lock: stops the program if `softnpu check --first` has found something.
void ask() noexcept {
    if (notes != nullptr && notes->asks && softnpu_watch_ask() != 0) raise(SIGTRAP);
}

// Runs `body` with the lock; what has no memory is not noted.
template <class F>
void locked(F&& body) noexcept {
    if (notes == nullptr) return;
    try {
        std::lock_guard lock(notes->mutex);
        body();
    } catch (...) {
    }
}

// The same if notes are written.
template <class F>
void noting(F&& body) noexcept {
    locked([&] {
        if (notes->file >= 0) body();
    });
}

// Called with the lock.
uint64_t number_of(const Object& object) {
    const uint64_t own = object.noted().number;
    if (own != 0) return own;
    const auto [known, is_new] = notes->numbers.emplace(&object, notes->last + 1);
    if (is_new) ++notes->last;
    return known->second;
}

// Loads what unwinds, before a signal handler needs it.
void start() {
    if (notes != nullptr) return;
    auto* const made = new Notes;
    void* warm[2];
    backtrace(warm, 2);
    made->get_thread = reinterpret_cast<GetThread>(dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState"));
    made->dump_frames = reinterpret_cast<DumpFrames>(dlsym(RTLD_DEFAULT, "_Py_DumpTraceback"));
    if (made->get_thread != nullptr) made->frames = memfd_create("softnpu-frames", MFD_CLOEXEC);
    notes = made;
    std::atexit([] { noting([] { Line("exit").write(); }); });
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

void memory_made(uint64_t handle, uint8_t* address, size_t size, bool shared,
                 const Object& context) noexcept {
    noting([&] {
        Line("made")
            .put("session", notes->session)
            .put("kind", std::string("memory"))
            .put("id", handle)
            .put("site", site())
            .put("size", size)
            .put("address", reinterpret_cast<uint64_t>(address))
            .raw("shared", shared ? "true" : "false")
            .put("parent", number_of(context))
            .write();
    });
}

void fill_unwritten(uint8_t* address, size_t size, bool exportable) noexcept {
    noting([&] {
        if (!notes->guarded)  // it has said so when it made its first context
            notes->guarded = access((notes->folder + "/guarded").c_str(), F_OK) == 0;
        if (!notes->guarded) return;
        // what was freed there is open again
        const long slot =
            softnpu_watch_add(reinterpret_cast<uintptr_t>(address), size, exportable ? 0 : PAGE);
        if (slot >= 0) notes->slots[address] = Watched{slot, size, exportable};
        for (size_t at = 0; at + sizeof UNWRITTEN <= size; at += sizeof UNWRITTEN)
            std::memcpy(address + at, &UNWRITTEN, sizeof UNWRITTEN);
        if (!exportable && size % PAGE != 0) std::memset(address + size, REST, PAGE - size % PAGE);
    });
}

void memory_ended(uint64_t handle, const uint8_t* address, bool with_context) noexcept {
    noting([&] {
        if (!with_context) {
            Line("ended")
                .put("session", notes->session)
                .put("kind", std::string("memory"))
                .put("id", handle)
                .put("site", site())
                .write();
        }
        const auto found = notes->slots.find(address);
        if (found == notes->slots.end()) return;
        Watched& watched = found->second;
        softnpu_watch_set(watched.slot, 0);  // for us
        const size_t first = watched.shared ? 0 : written_behind(address, watched.size);
        if (first != 0) {
            Line("overrun")
                .put("session", notes->session)
                .put("memory", handle)
                .put("first", first)
                .put("site", site())
                .write();
        }
        watched.freed = true;
        watched.unused = false;
        softnpu_watch_set(watched.slot, FREED);
    });
    ask();
}

void memory_gone(const uint8_t* address) noexcept {
    locked([&] {  // also when nothing is noted any more: the address is used again
        notes->uses.erase(address);
        const auto slot = notes->slots.find(address);
        if (slot == notes->slots.end()) return;
        // freed memory stays closed until its addresses are used again
        if (!slot->second.freed) softnpu_watch_remove(slot->second.slot, 1);
        notes->slots.erase(slot);
    });
}

void unmapped(const uint8_t* address, size_t size) noexcept {
    softnpu_watch_unmapped(reinterpret_cast<uintptr_t>(address), size);
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
