"""The properties of the NPU plugin: one record each, their readers, and their effect.

`docs/properties.md` is generated from the records.
"""

import openvino.properties as _openvino_properties

from softnpu.plugin.facade import fall_back, share_submodules
from softnpu.plugin.properties.config import ModelProperties, QueueProperties, check_tiles, in_effect
from softnpu.plugin.properties.readers import DeviceView, access_of, read
from softnpu.plugin.properties.table import (
    PROPERTIES,
    Access,
    Level,
    Property,
    PropertyPairs,
    Use,
    find,
    find_at,
    parse,
    property_pairs,
)

# the content of `openvino.properties`: names of properties, and `hint`, `device`, `log`, ...
__getattr__, __dir__ = fall_back(__name__, _openvino_properties)
share_submodules(__name__, _openvino_properties)

__all__ = [
    "PROPERTIES",
    "Access",
    "DeviceView",
    "Level",
    "ModelProperties",
    "Property",
    "PropertyPairs",
    "QueueProperties",
    "Use",
    "access_of",
    "check_tiles",
    "find",
    "find_at",
    "in_effect",
    "parse",
    "property_pairs",
    "read",
]
