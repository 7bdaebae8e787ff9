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

_MODULES = {
    "Allocation": "driver.memory",
    "BuildLog": "driver.build_log",
    "CommandList": "driver.command_list",
    "CommandQueue": "driver.command_queue",
    "Context": "driver.context",
    "Device": "driver.device",
    "Driver": "driver.driver",
    "Event": "driver.event",
    "Fence": "driver.fence",
    "Graph": "driver.graph",
    "GraphDesc": "driver.graph_creation",
    "GraphExtension": "driver.graph_extension",
    "GraphSource": "driver.graph_source",
    "WeightFile": "driver.graph_source",
    "ZeError": "driver.errors",
    "ZeResult": "emulator.interface.result",
}

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


def __getattr__(name: str) -> Any:
    # imported when first used: numpy takes longer to import than a command line tool to run
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"softnpu.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
