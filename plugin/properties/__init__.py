"""The properties of the NPU plugin: one record each, how they are read, and what setting one does.

`docs/plugin.md` has the table; a test keeps it equal to the records.
"""

from softnpu.plugin.properties.config import ModelProperties, QueueProperties, check_tiles
from softnpu.plugin.properties.readers import DeviceView, access_of, read
from softnpu.plugin.properties.record import Access, Level, Property, Use
from softnpu.plugin.properties.settings import Settings, in_effect
from softnpu.plugin.properties.table import PROPERTIES, find, find_at, parse

__all__ = [
    "PROPERTIES",
    "Access",
    "DeviceView",
    "Level",
    "ModelProperties",
    "Property",
    "QueueProperties",
    "Settings",
    "Use",
    "access_of",
    "check_tiles",
    "find",
    "find_at",
    "in_effect",
    "parse",
    "read",
]
