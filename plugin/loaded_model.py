"""A model on a device: what compiling and importing make, and what requests and exports use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from softnpu.driver import Context, Graph, WeightFile
from softnpu.plugin.initial_graph import initial_arguments
from softnpu.plugin.properties import ModelProperties
from softnpu.plugin.signature import Signature, signature_of


class OriginSource(msgspec.Struct, frozen=True, kw_only=True):
    """Weights of the compilation: bytes `offset` to `offset + length` of a file; a part of exported files.

    `path` is empty for weights in memory.
    """

    path: str
    offset: int
    length: int


class LoadedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A graph in a context, with everything that `CompiledModel` needs.

    `initial` is the graph that computes initial values of states, if the model has one; `initial_arguments`
    has the input of `graph` for each of its arguments. `sources` hold the constants, `file` is the model's
    own; both may be unknown. `extra` has texts of programs by name. `is_for_its_device`: the model's platform
    is that of the device, not another one (NPU_PLATFORM).
    """

    context: Context
    graph: Graph
    properties: ModelProperties
    signature: Signature
    initial: Graph | None
    initial_arguments: tuple[int, ...]
    sources: tuple[OriginSource, ...]
    file: str
    extra: Mapping[str, str]
    is_for_its_device: bool
    from_cache: bool = False

    @classmethod
    def of(
        cls,
        context: Context,
        graph: Graph,
        properties: ModelProperties,
        signature: Signature | None = None,
        initial: Graph | None = None,
        weights: Sequence[WeightFile] = (),
        file: str = "",
        extra: Mapping[str, str] | None = None,
    ) -> LoadedModel:
        """Complete `properties` and `signature` by the graph. Raises `NpuError` for a wrong `initial`."""
        return cls(
            context=context,
            graph=graph,
            properties=properties.compiled_as(graph.meta),
            signature=signature or signature_of(graph.meta),
            initial=initial,
            initial_arguments=initial_arguments(graph.meta, None if initial is None else initial.meta),
            sources=tuple(
                OriginSource(path=_path_of(each.fd), offset=each.offset, length=each.length)
                for each in weights
            ),
            file=file,
            extra=extra or {},
            is_for_its_device=graph.meta.platform == context.device.info.platform,
        )


def _path_of(fd: int) -> str:
    """Return the path of an open file; empty for memory, and for a file without a name."""
    path = os.readlink(f"/proc/self/fd/{fd}")
    try:
        named, opened = os.stat(path), os.fstat(fd)
    except OSError:
        return ""
    return path if (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino) else ""
