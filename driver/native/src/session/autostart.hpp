// The program that starts a daemon, and the environment that it gets.
#pragma once

#include <string>
#include <vector>

namespace softnpu {

// The Python that has softnpu, as the first words of a command: `SOFTNPU_PYTHON`, that of the environment
// which this library is installed in, or that of the `softnpu` on PATH. Empty when none is found.
std::vector<std::string> find_python();

// That of this process without what makes programs find this driver: the daemon is no such program.
std::vector<std::string> environment_of_daemon();

}  // namespace softnpu
