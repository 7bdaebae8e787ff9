// Texts of programs and models that are not UTF-8, which the firmware interface does not take.
#pragma once

#include <string>
#include <string_view>

namespace softnpu {

bool is_utf8(std::string_view text);
// Writes each byte that is no UTF-8 as its escape, such as \xe4.
std::string in_utf8(std::string_view text);

}  // namespace softnpu
