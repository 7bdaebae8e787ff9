// One line on stderr for what no result can express. `SOFTNPU_LOG=off`: silent.
#pragma once

#include <string>

namespace softnpu {

// Writes `text` once in this process.
void log_once(const std::string& text);

}  // namespace softnpu
