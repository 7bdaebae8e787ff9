"""The user-mode driver in Python: one class for each Level Zero object.

>>> from softnpu.driver import Driver
>>> with Driver.open() as driver:
...     device = driver.devices[0]
...     with device.create_context() as context:
...         memory = context.alloc_host(4096)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softnpu.driver.build_log import BuildLog
    from softnpu.driver.command_list import CommandList
    from softnpu.driver.command_queue import CommandQueue
    from softnpu.driver.context import Context
    from softnpu.driver.device import Device
    from softnpu.driver.driver import Driver
    from softnpu.driver.errors import ZeError
    from softnpu.driver.event import Event
    from softnpu.driver.fence import Fence
    from softnpu.driver.graph import Graph
    from softnpu.driver.graph_creation import GraphDesc
    from softnpu.driver.graph_extension import GraphExtension
    from softnpu.driver.graph_source import GraphSource, WeightFile
    from softnpu.driver.memory import Allocation
    from softnpu.emulator.interface.result import ZeResult

_DRIVER = "softnpu.driver."
_PLACES = {
    "Allocation": _DRIVER + "memory",
    "BuildLog": _DRIVER + "build_log",
    "CommandList": _DRIVER + "command_list",
    "CommandQueue": _DRIVER + "command_queue",
    "Context": _DRIVER + "context",
    "Device": _DRIVER + "device",
    "Driver": _DRIVER + "driver",
    "Event": _DRIVER + "event",
    "Fence": _DRIVER + "fence",
    "Graph": _DRIVER + "graph",
    "GraphDesc": _DRIVER + "graph_creation",
    "GraphExtension": _DRIVER + "graph_extension",
    "GraphSource": _DRIVER + "graph_source",
    "WeightFile": _DRIVER + "graph_source",
    "ZeError": _DRIVER + "errors",
    "ZeResult": "softnpu.emulator.interface.result",
}


def __getattr__(name: str) -> Any:
    # loaded when they are asked for: the compiler worker is a part of this package and needs none of them,
    # and what they load (numpy) costs more than a compilation that the cache answers
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


__all__ = [
    "Allocation",
    "BuildLog",
    "CommandList",
    "CommandQueue",
    "Context",
    "Device",
    "Driver",
    "Event",
    "Fence",
    "Graph",
    "GraphDesc",
    "GraphExtension",
    "GraphSource",
    "WeightFile",
    "ZeError",
    "ZeResult",
]
