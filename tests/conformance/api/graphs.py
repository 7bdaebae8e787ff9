"""The graph extension and the profiling extension; `pfnX` of their tables is `ze_graph_x` here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import (
    Answer,
    ArgumentMetadata,
    ArgumentProperties,
    DeviceGraphProperties,
    DeviceGraphProperties2,
    GraphDesc,
    GraphOutcome,
    GraphProperties,
    Handle,
    MemoryUse,
    Pointer,
    StridesValue,
    TensorValue,
)

Handles = Sequence[Handle] | None


class GraphsApi(ABC):
    """Graphs: from a model to an inference and its profile.

    Functions that C programs call twice (first for the size) are one method here: it makes both calls.
    """

    # ------------------------------------------------------------ device and options

    @abstractmethod
    def ze_device_get_graph_properties(
        self, device: Handle, out: bool = True
    ) -> Answer[DeviceGraphProperties]: ...

    @abstractmethod
    def ze_device_get_graph_properties2(
        self, device: Handle, out: bool = True
    ) -> Answer[DeviceGraphProperties2]: ...

    @abstractmethod
    def ze_graph_compiler_get_supported_options(self, device: Handle, kind: int) -> Answer[str]: ...

    @abstractmethod
    def ze_graph_compiler_is_option_supported(
        self, device: Handle, kind: int, name: str | None, value: str | None = None
    ) -> ZeResult: ...

    # ------------------------------------------------------------ life of a graph

    @abstractmethod
    def ze_graph_create(
        self, context: Handle, device: Handle, desc: GraphDesc | None, out: bool = True
    ) -> Answer[Handle]:
        """Version 1: flags of the descriptor do not reach the driver."""

    @abstractmethod
    def ze_graph_create2(
        self, context: Handle, device: Handle, desc: GraphDesc | None, out: bool = True
    ) -> Answer[Handle]: ...

    @abstractmethod
    def ze_graph_create3(
        self, context: Handle, device: Handle, desc: GraphDesc | None, out: bool = True
    ) -> tuple[ZeResult, GraphOutcome]:
        """Also a failed creation has a build log, so there are outputs in any case."""

    @abstractmethod
    def ze_graph_destroy(self, graph: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_graph_initialize(self, graph: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_graph_evict(self, graph: Handle) -> ZeResult: ...

    # ------------------------------------------------------------ what a graph is

    @abstractmethod
    def ze_graph_get_properties(self, graph: Handle, out: bool = True) -> Answer[GraphProperties]: ...

    @abstractmethod
    def ze_graph_get_properties2(self, graph: Handle, out: bool = True) -> Answer[GraphProperties]: ...

    @abstractmethod
    def ze_graph_get_properties3(self, graph: Handle, out: bool = True) -> Answer[GraphProperties]: ...

    @abstractmethod
    def ze_graph_get_argument_properties(
        self, graph: Handle, index: int, out: bool = True
    ) -> Answer[ArgumentProperties]: ...

    @abstractmethod
    def ze_graph_get_argument_properties2(
        self, graph: Handle, index: int, out: bool = True
    ) -> Answer[ArgumentProperties]: ...

    @abstractmethod
    def ze_graph_get_argument_properties3(
        self, graph: Handle, index: int, out: bool = True
    ) -> Answer[ArgumentProperties]: ...

    @abstractmethod
    def ze_graph_get_argument_metadata(
        self, graph: Handle, index: int, out: bool = True
    ) -> Answer[ArgumentMetadata]: ...

    @abstractmethod
    def ze_graph_get_native_binary(self, graph: Handle) -> Answer[bytes]:
        """Version 1: a copy."""

    @abstractmethod
    def ze_graph_get_native_binary2(self, graph: Handle) -> Answer[tuple[Pointer, int]]:
        """Version 2: address and size of the driver's own bytes."""

    # ------------------------------------------------------------ logs and queries

    @abstractmethod
    def ze_graph_build_log_get_string(self, graph: Handle) -> Answer[tuple[int, str]]:
        """Version 1: the size that the driver gives (with the NUL), and the text."""

    @abstractmethod
    def ze_graph_build_log_get_string2(self, log: Handle) -> Answer[tuple[int, str]]: ...

    @abstractmethod
    def ze_graph_build_log_destroy(self, log: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_graph_query_network_create2(
        self, context: Handle, device: Handle, desc: GraphDesc | None, out: bool = True
    ) -> Answer[Handle]: ...

    @abstractmethod
    def ze_graph_query_network_destroy(self, query: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_graph_query_network_get_supported_layers(self, query: Handle) -> Answer[str]: ...

    @abstractmethod
    def ze_graph_query_context_memory(
        self, context: Handle, kind: int, out: bool = True
    ) -> Answer[MemoryUse]: ...

    # ------------------------------------------------------------ execution

    @abstractmethod
    def ze_graph_set_argument_value(self, graph: Handle, index: int, value: Pointer) -> ZeResult: ...

    @abstractmethod
    def ze_graph_set_argument_value2(
        self, graph: Handle, index: int, chain: Sequence[TensorValue | StridesValue]
    ) -> ZeResult: ...

    @abstractmethod
    def ze_command_list_append_graph_initialize(
        self,
        command_list: Handle,
        graph: Handle,
        signal_event: Handle = None,
        num_wait_events: int = 0,
        wait_events: Handles = None,
    ) -> ZeResult: ...

    @abstractmethod
    def ze_command_list_append_graph_execute(
        self,
        command_list: Handle,
        graph: Handle,
        query: Handle = None,
        signal_event: Handle = None,
        num_wait_events: int = 0,
        wait_events: Handles = None,
    ) -> ZeResult: ...

    # ------------------------------------------------------------ profiling

    @abstractmethod
    def ze_device_get_profiling_data_properties(self, device: Handle, out: bool = True) -> Answer[int]:
        """The version of the profiling extension."""

    @abstractmethod
    def ze_graph_profiling_pool_create(
        self, graph: Handle, count: int, out: bool = True
    ) -> Answer[Handle]: ...

    @abstractmethod
    def ze_graph_profiling_pool_destroy(self, pool: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_graph_profiling_query_create(
        self, pool: Handle, index: int, out: bool = True
    ) -> Answer[Handle]: ...

    @abstractmethod
    def ze_graph_profiling_query_destroy(self, query: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_graph_profiling_query_get_data(self, query: Handle, kind: int) -> Answer[bytes]:
        """Records as they lie in memory; `profiles` decodes them."""
