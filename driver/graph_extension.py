"""The graph extension of a device: functions of `ZE_extension_graph` outside of `Graph`."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from softnpu.driver.build_log import BuildLog, last_log
from softnpu.driver.cache_options import cache_options_from_environment
from softnpu.driver.context import Context
from softnpu.driver.device import Device
from softnpu.driver.errors import error, invalid_argument, null_pointer
from softnpu.driver.extensions import version
from softnpu.driver.graph import Graph
from softnpu.driver.graph_creation import GraphDesc, ProgressCallback, create
from softnpu.driver.graph_properties import (
    DeviceGraphProperties2,
    GraphFormat,
    MemoryQuery,
    MemoryUse,
    OptionType,
)
from softnpu.driver.query_network import QueryNetwork
from softnpu.emulator.blob import container
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.result import ZeResult

EXTENSION_VERSION = version(1, 17)
_RUNTIMES = {"3720": (7, 0, 0)}
_RUNTIME = (11, 13, 0)


class GraphExtension:
    """The functions of the table that take a device or a context. Stateless and cheap to create."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._lock = threading.Lock()
        self._compiler: msg.CompilerOptionsAnswer | None = None

    # ------------------------------------------------------------ device and compiler

    def device_get_graph_properties(self) -> DeviceGraphProperties2:
        """`pfnDeviceGetGraphProperties`, 1 and 2."""
        compiler = self._options("pfnDeviceGetGraphProperties2")
        return DeviceGraphProperties2(
            graph_extension_version=EXTENSION_VERSION,
            compiler_version=(compiler.major, compiler.minor),
            graph_formats_supported=GraphFormat.NGRAPH_LITE,
            max_ov_opset_version_supported=compiler.opset,
            elf_version=(container.MAJOR, container.MINOR, 0),
            runtime_version=_RUNTIMES.get(self.device.info.platform, _RUNTIME),
        )

    def compiler_get_supported_options(self, kind: int = OptionType.COMPILER) -> str:
        """`pfnCompilerGetSupportedOptions`: names separated by blanks; the driver itself has none."""
        call = "pfnCompilerGetSupportedOptions"
        self._check_kind(call, kind)
        return "" if kind == OptionType.DRIVER else " ".join(self._options(call).options)

    def compiler_is_option_supported(self, kind: int, name: str | None, value: str | None = None) -> None:
        """`pfnCompilerIsOptionSupported`: return if the option (and this value of it) is supported.

        Raises `ZeError` with UNSUPPORTED_FEATURE if it is not.
        """
        call = "pfnCompilerIsOptionSupported"
        self._check_kind(call, kind)
        if name is None:
            raise null_pointer(call, "option", found="null pointer", expected="a name")
        if kind == OptionType.COMPILER:
            request = msg.CompilerOptions(device=self.device.info.index, option=name, value=value)
            answer, _ = self.device._connection.request(call, request, msg.CompilerOptionsAnswer)
            if answer.supported:
                return
        raise error(
            call,
            ZeResult.ERROR_UNSUPPORTED_FEATURE,
            f"option {name}",
            found="not supported" if value is None else f"value '{value}' is not supported",
            expected="an option of the compiler",
        )

    # ------------------------------------------------------------ graphs

    def create(self, context: Context, desc: GraphDesc | None) -> Graph:
        """`pfnCreate`: version 1 of the descriptor has no flags, so they are ignored."""
        if desc is not None:
            desc = GraphDesc(desc.format, desc.input, desc.build_flags, 0, desc.input_hash)
        return create(context, desc, self._version("pfnCreate"), call="pfnCreate")

    def create2(
        self, context: Context, desc: GraphDesc | None, progress: ProgressCallback | None = None
    ) -> Graph:
        """`pfnCreate2`. Raises `ZeError`, see `graph_creation`."""
        return create(context, desc, self._version("pfnCreate2"), progress=progress)

    def create3(
        self,
        context: Context,
        desc: GraphDesc | None,
        log: BuildLog,
        progress: ProgressCallback | None = None,
    ) -> Graph:
        """`pfnCreate3`: as `create2`; fills `log`, even on failure."""
        call = "pfnCreate3"
        return create(context, desc, self._version(call), log=log, progress=progress, call=call)

    def query_network_create(self, context: Context, desc: GraphDesc | None) -> QueryNetwork:
        """`pfnQueryNetworkCreate`, 1 and 2. UNSUPPORTED_ENUMERATION for a native blob."""
        return QueryNetwork(context, desc, self._version("pfnQueryNetworkCreate2"))

    def build_log_get_string(self, graph: Graph | None) -> str:
        """`pfnBuildLogGetString`: this thread's last creation failure, or its cache status.

        Empty for a graph.
        """
        if graph is None:
            return last_log()
        graph._check("pfnBuildLogGetString")
        return ""

    def query_context_memory(self, context: Context, kind: int) -> MemoryUse:
        """`pfnQueryContextMemory`, in bytes. INVALID_ARGUMENT for an unknown type.

        Both caches are the directory of compiled models, as in the real driver.
        """
        call = "pfnQueryContextMemory"
        context._check(call)
        if kind == MemoryQuery.DDR:
            total, allocated = context.query_memory()
            return MemoryUse(total=total, allocated=allocated + context.query_graph_memory())
        if kind in (MemoryQuery.DRIVER_CACHE, MemoryQuery.PROGRAM_CACHE):
            return _cache_use()
        raise invalid_argument(
            call,
            "context memory",
            found=f"type {kind}",
            expected=" or ".join(f"{query.value} ({query.name})" for query in MemoryQuery),
        )

    # ------------------------------------------------------------

    def _version(self, call: str) -> tuple[int, int]:
        compiler = self._options(call)
        return compiler.major, compiler.minor

    def _options(self, call: str) -> msg.CompilerOptionsAnswer:
        self.device.driver._check(call)
        with self._lock:
            if self._compiler is None:
                request = msg.CompilerOptions(device=self.device.info.index)
                self._compiler, _ = self.device._connection.request(call, request, msg.CompilerOptionsAnswer)
            return self._compiler

    def _check_kind(self, call: str, kind: int) -> None:
        self.device.driver._check(call)
        if kind not in set(OptionType):
            raise invalid_argument(
                call,
                "options",
                found=f"type {kind}",
                expected=" or ".join(f"{each.value} ({each.name})" for each in OptionType),
            )


def _cache_use() -> MemoryUse:
    options = cache_options_from_environment(os.environ)
    if options is None:
        return MemoryUse(total=0, allocated=0)
    try:
        used = sum(path.stat().st_size for path in Path(options.directory).iterdir() if path.is_file())
    except OSError:
        used = 0  # nothing was stored yet, or the directory is being removed
    return MemoryUse(total=options.limit, allocated=used)
