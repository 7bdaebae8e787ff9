"""`ze_graph_query_network_handle_t`: the layers of a model that the device executes."""

from __future__ import annotations

import os

from softnpu.driver.context_base import ContextBase
from softnpu.driver.errors import error, null_pointer
from softnpu.driver.graph_creation import GraphDesc
from softnpu.driver.graph_properties import GraphFormat
from softnpu.driver.handle import Handle
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.result import ZeResult


class QueryNetwork(Handle):
    """The answer to one query; made by `GraphExtension.query_network_create`."""

    def __init__(self, context: ContextBase, desc: GraphDesc | None, compiler: tuple[int, int]) -> None:
        call = "pfnQueryNetworkCreate2"
        context._check(call)
        if desc is None:
            raise null_pointer(call, "graph", found="desc is null", expected="a description")
        view = desc._view(call)
        if desc.format != GraphFormat.NGRAPH_LITE:
            raise error(
                call,
                ZeResult.ERROR_UNSUPPORTED_ENUMERATION,
                "query network",
                found=f"format {desc.format}",
                expected=f"{GraphFormat.NGRAPH_LITE.value} (NGRAPH_LITE)",
            )
        from softnpu.driver import serialized

        with serialized.parse(view, compiler, call) as source:
            request = msg.GraphQuery(
                context=context.handle,
                name=source.name,
                xml_length=source.xml_length,
                weights=source.sources,
                build_flags=desc.build_flags or "",
            )
            answer, (fd,) = context._connection.request(call, request, msg.GraphQueried, source.fds)
        try:
            self._layers = [os.pread(fd, answer.length, 0).decode()]
        finally:
            os.close(fd)
        self._register(context, context._connection, self._layers.clear)

    def get_supported_layers(self) -> str:
        """`pfnQueryNetworkGetSupportedLayers`: `<name><name>...`."""
        self._check("pfnQueryNetworkGetSupportedLayers")
        return self._layers[0]
