"""Models in memory in the driver's form: weights by descriptor, or a stream with addresses of constants.

OpenVINO's own NPU plugin writes the same stream (see `driver.serialized`).
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import openvino as ov

from softnpu.driver import GraphSource, WeightFile
from softnpu.driver.process_memory import Gathered, Piece, gather
from softnpu.emulator.blob.weights import aligned, with_offsets
from softnpu.emulator.common import linux, model_texts
from softnpu.emulator.compiler.constants import ConstantNode, constant_nodes, serialize_ir
from softnpu.plugin.errors import ModelError

if TYPE_CHECKING:
    from softnpu.plugin.models.weights_pool import Pool

_VERSION = struct.Struct("<HH")
_STREAM = struct.Struct("<6Q")
_RT_INFO = re.compile(rb"\s*+<rt_info>")
_DATA_END = re.compile(rb'(?:[^">]|"[^"]*")*+>')
_SIZE_OF = re.compile(rb'\ssize="\d+"')


def no_copy_form(
    model: ov.Model, version: tuple[int, int], copy_below: int = 0, kernels: str = ""
) -> bytearray:
    """Serialise with constants as addresses: `model` must live until the driver has read the stream.

    The stream contains constants of fewer than `copy_below` bytes, and those missing in `model`: a Pad
    without a value gets one when it is copied. The model declares that build flags call arguments by index,
    as in OpenVINO. `kernels`: own ones that it uses, as `carried.text` has them.
    """
    indexed = model.clone()  # shares the constants
    indexed.set_rt_info(True, "is_new_api")
    indexed.set_rt_info(True, "use_indices_for_io_metadata")
    if kernels:
        from softnpu.emulator.kernels import carried  # late: few models have any

        indexed.set_rt_info(kernels, carried.KEY)
    subject = f"model '{model_texts.friendly_name(model)}'"
    xml, nodes, layers = serialize_ir(indexed, subject)
    own = {node.address for node in constant_nodes(model, subject)}
    embedded = [node for node in nodes if node.length < copy_below or node.address not in own]
    constants, offsets = _packed(embedded)
    parts, last = [], 0
    for node, layer in zip(nodes, layers, strict=True):
        if node.length < copy_below or node.address not in own:
            parts += [xml[last : layer.begin], b"%d" % offsets[node.address, node.length]]
            last = layer.end
            continue
        end = _DATA_END.match(xml, layer.end + 1)  # after the closing quote of the offset
        assert end is not None
        rest = _SIZE_OF.sub(b' size="0"', xml[layer.end : end.end()], count=1)
        info = _RT_INFO.match(xml, end.end())
        attribute = _pointer(node)
        parts += [xml[last : layer.begin], b"0", rest]
        parts.append(info[0] + attribute if info else b"<rt_info>" + attribute + b"</rt_info>")
        last = info.end() if info else end.end()
    xml = b"".join([*parts, xml[last:]])
    start = _STREAM.size + _VERSION.size
    size = len(constants)
    header = _STREAM.pack(_STREAM.size, _VERSION.size, start, size, start + size, len(xml))
    return bytearray(header + _VERSION.pack(*version) + constants + xml)


def by_descriptor(model: ov.Model, name: str, pool: Pool | None = None, copy_below: int = 0) -> GraphSource:
    """Return the model for the compiler: file-mapped constants are passed as the file's descriptor.

    Constants found in `pool`, byte for byte, are passed as its descriptor. All others, and those of fewer
    than `copy_below` bytes, are copied once into sealed memory.
    Raises `ZeError` if that fails, `ModelError` if the pool has no constant of the model.
    """
    offsets: dict[tuple[int, int], int] = {}
    files: list[WeightFile] = []
    with ExitStack() as undo:

        def locate(nodes: Sequence[ConstantNode]) -> None:
            gathered = _gathered(nodes, name, pool, copy_below)
            for file in gathered.files:
                undo.callback(os.close, file.fd)
            files.extend(gathered.files)
            ranges = ((node.address, node.length) for node in nodes)
            offsets.update(zip(ranges, gathered.offsets, strict=True))

        # large constants are copied while OpenVINO reads them as well
        xml, nodes, layers = serialize_ir(model, f"model '{model_texts.friendly_name(model)}'", locate)
        xml = with_offsets(xml, layers, [offsets[node.address, node.length] for node in nodes])
        source = GraphSource.from_xml(name, xml, weights=files)
        undo.pop_all()
    return source


def _gathered(nodes: Sequence[ConstantNode], name: str, pool: Pool | None, copy_below: int) -> Gathered:
    ranges = {} if pool is None else _ranges_in(pool, nodes, name)
    copied = [i for i, node in enumerate(nodes) if 0 < node.length < copy_below and i not in ranges]
    constants, offsets = _packed([nodes[index] for index in copied])
    with ExitStack() as stack:
        if copied:
            fd = linux.sealed_copy("constants", memoryview(constants))
            stack.callback(os.close, fd)
            ranges |= {i: (fd, offsets[nodes[i].address, nodes[i].length]) for i in copied}
        pieces = [Piece(node.name, node.address, node.length) for node in nodes]
        return gather(pieces, "pfnCreate2", ranges)


def _ranges_in(pool: Pool, nodes: Sequence[ConstantNode], name: str) -> dict[int, tuple[int, int]]:
    """Return descriptor and offset, by index, of the constants found in a pool."""
    ranges: dict[int, tuple[int, int]] = {}
    for index, node in enumerate(nodes):
        entry = pool.equal(node.view(), node.name) if node.length else None
        if entry is not None:
            ranges[index] = (pool.fds[entry.file], entry.offset)
    if not ranges and any(node.length for node in nodes):
        raise ModelError(
            f"model '{name}': none of its {len(nodes)} constants is in {pool.name}; expected the weights"
            " of this model"
        )
    return ranges


def _packed(nodes: Sequence[ConstantNode]) -> tuple[bytearray, dict[tuple[int, int], int]]:
    """Pack constants without duplicates; return the offset of each by its address and length."""
    data = bytearray()
    offsets: dict[tuple[int, int], int] = {}
    for node in nodes:
        if (node.address, node.length) not in offsets:
            data += bytes(aligned(len(data)) - len(data))
            offsets[node.address, node.length] = len(data)
            data += node.view()
    return data, offsets


def _pointer(node: ConstantNode) -> bytes:
    return b'<attribute name="WeightsPointerAttribute" version="0" mp="%d" ms="%d" />' % (
        node.address,
        node.length,
    )
