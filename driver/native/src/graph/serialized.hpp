// Serialised models as programs hand them to `pfnCreate`, format NGRAPH_LITE.
//
// Copying form, packed: version u16, u16 | parts u32, which is 2 | size u64 | XML | size u64 | weights.
//
// No-copy form: six u64 (offset and size of custom data, constants, XML), then the custom data, which is the
// version u16, u16; then constants; then the XML. There a constant has, instead of bytes, an attribute
// `WeightsPointerAttribute` with `mp`, its address in this process, and `ms`, its bytes.
//
// Every size is checked against the input before anything is read.
#pragma once

#include <string>
#include <vector>

#include "graph/weights.hpp"
#include "session/driver.hpp"
#include "wire/msgpack.hpp"

namespace softnpu {

// A model on its way to the compiler: descriptors of the XML and of its weights.
struct GraphSource {
    std::string name;
    Fd xml;
    uint64_t xml_length = 0;
    std::vector<WeightFile> weights;

    // The XML, then the sources of the weights.
    std::vector<int> fds() const;
    // The fields `name`, `xml_length` and `weights` of a message.
    void describe(MapWriter& message) const;
};

// The model in `data`, which stays valid during the call. INVALID_SIZE for sizes that do not fit,
// INVALID_ARGUMENT for another layout or pointers that lead nowhere, UNSUPPORTED_VERSION for a model that was
// written for another compiler.
GraphSource parse_model(const uint8_t* data, size_t size, const CompilerInfo& compiler);

}  // namespace softnpu
