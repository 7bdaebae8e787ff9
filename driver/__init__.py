"""The user-mode driver in Python: one class for each Level Zero object.

>>> from softnpu.driver import Driver
>>> with Driver.open() as driver:
...     device = driver.devices[0]
...     with device.create_context() as context:
...         memory = context.alloc_host(4096)
"""

from softnpu.driver.command_list import CommandList
from softnpu.driver.command_queue import CommandQueue
from softnpu.driver.context import Context
from softnpu.driver.device import Device
from softnpu.driver.driver import Driver
from softnpu.driver.errors import ZeError
from softnpu.driver.event import Event
from softnpu.driver.fence import Fence
from softnpu.driver.graph import Graph, GraphSource
from softnpu.driver.memory import Allocation
from softnpu.emulator.interface.result import ZeResult

__all__ = [
    "Allocation",
    "CommandList",
    "CommandQueue",
    "Context",
    "Device",
    "Driver",
    "Event",
    "Fence",
    "Graph",
    "GraphSource",
    "ZeError",
    "ZeResult",
]
