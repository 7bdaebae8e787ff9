// The extensions that the driver offers, by their real names and versions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace softnpu {

struct Extension {
    std::string name;
    uint32_t version;
};

// What zeDriverGetExtensionProperties lists, the aliases of the graph extension included.
const std::vector<Extension>& extensions();
// The function table of an extension, or a function by its name. INVALID_ARGUMENT for an unknown one.
void* find_extension(const std::string& name);

}  // namespace softnpu
