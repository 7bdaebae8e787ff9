#include "base/log.hpp"

#include <cstring>
#include <mutex>
#include <set>

#include <unistd.h>

#include "base/environment.hpp"

namespace softnpu {

void log_once(const std::string& text) {
    const char* level = variable("SOFTNPU_LOG");
    if (level != nullptr && std::strcmp(level, "off") == 0) return;
    // never destroyed: programs call the driver from destructors of static objects too
    static auto* const mutex = new std::mutex;
    static auto* const logged = new std::set<std::string>;
    {
        // never blocks: in a forked child the holder may not exist
        std::unique_lock<std::mutex> lock(*mutex, std::try_to_lock);
        if (lock && !logged->insert(text).second) return;
    }
    const std::string line = "softnpu: " + text + "\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace softnpu
