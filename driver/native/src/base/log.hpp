// One line on stderr, for what a program would otherwise never learn. `SOFTNPU_LOG=off`: silent.
#pragma once

#include <string>

namespace softnpu {

// Says `text` once in this process, however often the same happens.
void log_once(const std::string& text);

}  // namespace softnpu
