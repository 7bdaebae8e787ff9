// What the parts of `check` share: the state of this process, and the lines of its notes. Private to them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/handles.hpp"

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
    int frames = -1;  // where Python writes its frames
    GetThread get_thread = nullptr;
    DumpFrames dump_frames = nullptr;
};

extern Notes* notes;
// The folder of the notes: a forked child reads it without a lock. Never destroyed.
extern std::atomic<const std::string*> noted_in;

std::string quoted(const std::string& text);

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
    // Called with the lock. A full disk ends the notes.
    void write();

private:
    std::string text_;
};

// Loads what unwinds, before a signal handler needs it.
void start();
// Called with the lock. From now on notes are of another daemon, or of none.
void change_folder(const std::string& folder);
// The number of the place in the program. Called with the lock.
uint32_t site();
// Called with the lock.
uint64_t number_of(const Object& object);
// After a note, without the lock: stops the program if `softnpu check --first` has found something.
void ask() noexcept;

// Denies the program what is in flight at an address. Called with the lock.
void apply(const uint8_t* address);
// Denies reading what a closed list is to write, as long as nobody has written it. Called with the lock.
void expect(const uint8_t* address);
// Allows what the submissions of a queue up to this one have used. Called with the lock.
void allow(uint64_t queue, uint64_t sequence);

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

}  // namespace softnpu::check
