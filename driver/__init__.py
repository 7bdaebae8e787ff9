"""The user-mode driver in Python: one class for each Level Zero object.

>>> from softnpu.driver import Driver
>>> with Driver.open() as driver:
...     device = driver.devices[0]
...     with device.create_context() as context:
...         memory = context.alloc_host(4096)

These names are public; the modules below are internal. Start with `Driver.open`. docs/level-zero.md maps each
function of the C headers to its method.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # that of `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from softnpu.driver.build_log import BuildLog
    from softnpu.driver.command_list import CommandList
    from softnpu.driver.command_list_immediate import CommandListImmediate
    from softnpu.driver.command_list_mutable import CommandListMutable, Mutation, MutationKind
    from softnpu.driver.command_queue import CommandQueue, QueueMode
    from softnpu.driver.context import Context
    from softnpu.driver.device import Device
    from softnpu.driver.driver import Driver
    from softnpu.driver.errors import ZeError
    from softnpu.driver.event import Event, EventPool
    from softnpu.driver.external_semaphore import ExternalSemaphore
    from softnpu.driver.fence import Fence
    from softnpu.driver.graph import Graph
    from softnpu.driver.graph_creation import GraphDesc
    from softnpu.driver.graph_extension import GraphExtension
    from softnpu.driver.graph_properties import GraphFormat, MemoryQuery, OptionType
    from softnpu.driver.graph_source import GraphSource, WeightFile
    from softnpu.driver.lease import Lease
    from softnpu.driver.memory import Allocation
    from softnpu.driver.metrics import MetricGroup, MetricQuery, MetricQueryPool, MetricStreamer
    from softnpu.driver.profiling import ProfilingPool, ProfilingQuery, ProfilingType
    from softnpu.driver.published_memory import PublishedMemory
    from softnpu.driver.query_network import QueryNetwork
    from softnpu.driver.region import CopyRegion
    from softnpu.driver.sysman import Sysman
    from softnpu.emulator.interface.messages import GraphFlag
    from softnpu.emulator.interface.result import ZeResult

_MODULES = {
    "Allocation": "driver.memory",
    "BuildLog": "driver.build_log",
    "CommandList": "driver.command_list",
    "CommandListImmediate": "driver.command_list_immediate",
    "CommandListMutable": "driver.command_list_mutable",
    "CommandQueue": "driver.command_queue",
    "Context": "driver.context",
    "CopyRegion": "driver.region",
    "Device": "driver.device",
    "Driver": "driver.driver",
    "Event": "driver.event",
    "EventPool": "driver.event",
    "ExternalSemaphore": "driver.external_semaphore",
    "Fence": "driver.fence",
    "Graph": "driver.graph",
    "GraphDesc": "driver.graph_creation",
    "GraphExtension": "driver.graph_extension",
    "GraphFlag": "emulator.interface.messages",
    "GraphFormat": "driver.graph_properties",
    "GraphSource": "driver.graph_source",
    "Lease": "driver.lease",
    "MemoryQuery": "driver.graph_properties",
    "MetricGroup": "driver.metrics",
    "MetricQuery": "driver.metrics",
    "MetricQueryPool": "driver.metrics",
    "MetricStreamer": "driver.metrics",
    "Mutation": "driver.command_list_mutable",
    "MutationKind": "driver.command_list_mutable",
    "OptionType": "driver.graph_properties",
    "ProfilingPool": "driver.profiling",
    "ProfilingQuery": "driver.profiling",
    "ProfilingType": "driver.profiling",
    "PublishedMemory": "driver.published_memory",
    "QueryNetwork": "driver.query_network",
    "QueueMode": "driver.command_queue",
    "Sysman": "driver.sysman",
    "WeightFile": "driver.graph_source",
    "ZeError": "driver.errors",
    "ZeResult": "emulator.interface.result",
}

__all__ = [
    "Allocation",
    "BuildLog",
    "CommandList",
    "CommandListImmediate",
    "CommandListMutable",
    "CommandQueue",
    "Context",
    "CopyRegion",
    "Device",
    "Driver",
    "Event",
    "EventPool",
    "ExternalSemaphore",
    "Fence",
    "Graph",
    "GraphDesc",
    "GraphExtension",
    "GraphFlag",
    "GraphFormat",
    "GraphSource",
    "Lease",
    "MemoryQuery",
    "MetricGroup",
    "MetricQuery",
    "MetricQueryPool",
    "MetricStreamer",
    "Mutation",
    "MutationKind",
    "OptionType",
    "ProfilingPool",
    "ProfilingQuery",
    "ProfilingType",
    "PublishedMemory",
    "QueryNetwork",
    "QueueMode",
    "Sysman",
    "WeightFile",
    "ZeError",
    "ZeResult",
]


def __getattr__(name: str) -> Any:
    # imported on first use: numpy takes longer to import than a command line tool to run
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"softnpu.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
