// What a program may not do with its memory while it is checked: touch what is in flight, free or unwritten.
#include <algorithm>
#include <cstring>

#include "session/check.hpp"
#include "session/check_state.hpp"

namespace softnpu::check {

namespace {

constexpr uint64_t UNWRITTEN = 0xA5C3F00D5EED1E55ull;
constexpr int FREED = 3, READING = 4;
constexpr size_t PAGE = 4096;
constexpr uint8_t REST = 0xA5;  // behind the end of an allocation, up to the next page

bool is_unwritten(const uint8_t* address, size_t size) {
    for (size_t at = 0; at + sizeof UNWRITTEN <= size; at += sizeof UNWRITTEN)
        if (std::memcmp(address + at, &UNWRITTEN, sizeof UNWRITTEN) != 0) return false;
    return true;
}

// Where behind its end the program has written, counted from its beginning; 0: nowhere.
size_t written_behind(const uint8_t* address, size_t size) {
    for (size_t at = size; at % PAGE != 0; ++at)
        if (address[at] != REST) return at;
    return 0;
}

}  // namespace

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

void expect(const uint8_t* address) {
    const auto found = notes->slots.find(address);
    if (found == notes->slots.end() || !found->second.unused || found->second.shared) return;
    found->second.unused = false;
    if (is_unwritten(address, found->second.size)) softnpu_watch_set(found->second.slot, READING);
}

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

}  // namespace softnpu::check
