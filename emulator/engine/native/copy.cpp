// Large copies of client memory, by several threads.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

constexpr std::size_t CHUNK = 1 << 20;

#if defined(__SSE2__)
constexpr std::size_t LINE = 64;
constexpr std::size_t AHEAD = 1024;

// Stores that bypass the caches: lines of the target are not read before they are overwritten, which saves a
// third of the traffic.
void copy_chunk(char* to, const char* from, std::size_t size) {
    const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % LINE;
    const std::size_t head = std::min(size, misaligned ? LINE - misaligned : 0);
    std::memcpy(to, from, head);
    std::size_t at = head;
    for (; at + LINE <= size; at += LINE) {
        // a hint: a no-op past the end of the source
        _mm_prefetch(from + at + AHEAD, _MM_HINT_NTA);
        const auto* source = reinterpret_cast<const __m128i*>(from + at);
        auto* target = reinterpret_cast<__m128i*>(to + at);
        const __m128i first = _mm_loadu_si128(source), second = _mm_loadu_si128(source + 1);
        const __m128i third = _mm_loadu_si128(source + 2), fourth = _mm_loadu_si128(source + 3);
        _mm_stream_si128(target, first);
        _mm_stream_si128(target + 1, second);
        _mm_stream_si128(target + 2, third);
        _mm_stream_si128(target + 3, fourth);
    }
    std::memcpy(to + at, from + at, size - at);
    _mm_sfence();  // such stores are not ordered with later ones, such as a signal
}
#else
void copy_chunk(char* to, const char* from, std::size_t size) { std::memcpy(to, from, size); }
#endif

}  // namespace

extern "C" {

// Copies `size` bytes between ranges that do not overlap, with up to `threads` threads. They have ended, and
// every byte is in place, when it returns.
void softnpu_copy(void* to, const void* from, std::size_t size, unsigned threads) {
    auto* target = static_cast<char*>(to);
    const auto* source = static_cast<const char*>(from);
    // taken chunk by chunk: a thread preempted by another program delays one chunk, not its whole share
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
        for (;;) {
            const std::size_t at = next.fetch_add(CHUNK, std::memory_order_relaxed);
            if (at >= size) return;
            copy_chunk(target + at, source + at, std::min(CHUNK, size - at));
        }
    };
    std::vector<std::thread> helpers;
    try {
        helpers.reserve(threads);
        while (helpers.size() + 1 < threads) helpers.emplace_back(work);
    } catch (const std::system_error&) {
        // thread limit reached: the existing ones do the work
    } catch (const std::bad_alloc&) {
    }
    work();
    for (std::thread& helper : helpers) helper.join();
}
}
