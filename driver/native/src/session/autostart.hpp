// How to start a daemon: the command and its environment.
#pragma once

#include <string>
#include <vector>

namespace softnpu {

// The Python that has softnpu, as the first words of a command: `SOFTNPU_PYTHON`, that of the environment
// which this library is installed in, or that of the `softnpu` on PATH. Empty when none is found.
std::vector<std::string> find_python();

// What a daemon gets of the environment of this process: the lists of interface.md, section 1.
std::vector<std::string> environment_of_daemon();

}  // namespace softnpu
