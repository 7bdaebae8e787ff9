// What this driver notes for `softnpu check`: objects, lists, submissions, and what the program waits for.
// The lines are those of emulator/interface/check_notes.py. Nothing is noted unless the daemon asks for it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/handles.hpp"

namespace softnpu::check {

extern std::atomic<bool> active;
inline bool on() { return active.load(std::memory_order_relaxed); }

// A session has begun: from now on everything is noted in this folder; nothing without one.
void begin(uint64_t session, const std::string& folder) noexcept;
void forget_in_child() noexcept;

// ---- objects

void made(Kind kind, const Object& object) noexcept;
void ended(Kind kind, const Object& object, bool reset = false) noexcept;
// `shared`: other programs may use it.
void memory_made(uint64_t handle, uint8_t* address, size_t size, bool shared, const Object& context) noexcept;
// The program frees it, or it ends with its context: from now on its use is told.
void memory_ended(uint64_t handle, const uint8_t* address, bool with_context = false) noexcept;
// The memory at this address is given back, or a whole mapping is.
void memory_gone(const uint8_t* address) noexcept;
void unmapped(const uint8_t* address, size_t size) noexcept;
// Marks fresh memory as unwritten, and watches it: it has whole pages of its own, with a free one behind them
// unless it is exportable, which ends with its file.
void fill_unwritten(uint8_t* address, size_t size, bool exportable) noexcept;

// A process uses an object of the one off which it was forked.
void foreign_handle(const char* kind) noexcept;

// ---- lists

// A call of the program that appends a command, and where.
struct Append {
    const char* call;
    uint32_t site;
};
// What the program may not do with memory in flight: write it, or touch it.
enum Denied : int { WRITING = 1, EVERYTHING = 2 };
// A closed list: its numbers in the notes, and the memory that it uses.
struct Recording {
    uint64_t list = 0;
    uint64_t number = 0;
    std::vector<std::pair<const uint8_t*, Denied>> uses;
};

Append append() noexcept;
// A copy to be appended uses bytes from `offset` to `end` of this memory, which ends before.
void out_of_bounds(uint64_t memory, uint64_t offset, uint64_t end, uint64_t size, bool write) noexcept;
// A command that signals an event: its number in the list, and where the event lies.
struct Signal {
    uint64_t command, memory, offset;
};
std::shared_ptr<const Recording> recorded(const Object& list, const std::vector<Append>& appends,
                                          std::vector<std::pair<const uint8_t*, Denied>> uses,
                                          const std::vector<Signal>& signals) noexcept;

// ---- submissions and their ends

void submitted(uint64_t queue, uint64_t first, const std::vector<std::shared_ptr<const Recording>>& lists,
               const Object* fence) noexcept;
void completed(uint64_t queue, uint64_t sequence) noexcept;
// The program has waited for a fence that it knew to be signalled, or in vain since then.
void rewaited(uint64_t queue, uint64_t sequence) noexcept;
void timed_out(uint64_t queue, uint64_t sequence, uint64_t since) noexcept;
// `what`: signal, reset or seen.
void event(const Object& event, const char* what) noexcept;

}  // namespace softnpu::check
