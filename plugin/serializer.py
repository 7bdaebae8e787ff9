"""Models in memory as programs hand them to the driver: both serialised forms, and weights by descriptor.

The forms are those that OpenVINO's own NPU plugin writes (see `driver.serialized`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

import openvino as ov

from softnpu.driver import GraphSource
from softnpu.driver.process_memory import Piece, gather
from softnpu.emulator.blob.weights import const_layers, with_offsets
from softnpu.emulator.compiler.constants import ConstantNode, constant_nodes, serialize_ir
from softnpu.plugin.errors import ModelError
from softnpu.plugin.weights_pool import Pool

_HEADER = struct.Struct("<HHI")
_VERSION = struct.Struct("<HH")
_SIZE = struct.Struct("<Q")
_STREAM = struct.Struct("<6Q")
_RT_INFO = re.compile(rb"\s*+<rt_info>")
_DATA_END = re.compile(rb'(?:[^">]|"[^"]*")*+>')
_SIZE_OF = re.compile(rb'\ssize="\d+"')


def copying_form(model: ov.Model, version: tuple[int, int], by_index: bool = True) -> bytearray:
    """Version, 2, size and XML, size and weights: all constants are copied.

    `by_index` says in the model that build flags call arguments by their index, as OpenVINO does.
    """
    xml, nodes = _written(model, by_index)
    offsets, size = _packed(nodes)
    xml = with_offsets(xml, const_layers(xml), [offsets[node.address, node.length] for node in nodes])
    out = bytearray(_HEADER.pack(*version, 2) + _SIZE.pack(len(xml)) + xml + _SIZE.pack(size))
    base = len(out)
    out.extend(bytes(size))
    for node in nodes:
        start = base + offsets[node.address, node.length]
        out[start : start + node.length] = node.view()
    return out


def no_copy_form(
    model: ov.Model, version: tuple[int, int], by_index: bool = True, copy_below: int = 0
) -> bytearray:
    """The stream whose constants are addresses: `model` has to live until the driver has taken it.

    Constants of fewer than `copy_below` bytes lie in the stream, and those that `model` does not have itself.
    """
    xml, nodes = _written(model, by_index)
    own = {node.address for node in constant_nodes(model, f"model '{model.get_friendly_name()}'")}
    inside = [node for node in nodes if node.length < copy_below or node.address not in own]
    offsets, size = _packed(inside)
    layers = const_layers(xml)
    parts, last = [], 0
    for node, layer in zip(nodes, layers, strict=True):
        if node.length < copy_below or node.address not in own:
            parts += [xml[last : layer.begin], b"%d" % offsets[node.address, node.length]]
            last = layer.end
            continue
        end = _DATA_END.match(xml, layer.end + 1)  # behind the quote that ends the offset
        assert end is not None
        rest = _SIZE_OF.sub(b' size="0"', xml[layer.end : end.end()], count=1)
        info = _RT_INFO.match(xml, end.end())
        attribute = _pointer(node)
        parts += [xml[last : layer.begin], b"0", rest]
        parts.append(info[0] + attribute if info else b"<rt_info>" + attribute + b"</rt_info>")
        last = info.end() if info else end.end()
    xml = b"".join([*parts, xml[last:]])
    constants = bytearray(size)
    for node in inside:
        start = offsets[node.address, node.length]
        constants[start : start + node.length] = node.view()
    at = _STREAM.size + _VERSION.size
    header = _STREAM.pack(_STREAM.size, _VERSION.size, at, size, at + size, len(xml))
    return bytearray(header + _VERSION.pack(*version) + constants + xml)


def by_descriptor(model: ov.Model, name: str, pool: Pool | None = None) -> GraphSource:
    """The model for the compiler: constants that OpenVINO maps from a file go as that file's descriptor.

    So do those that are found in `pool`, byte for byte. All others are copied once, into a sealed memory
    file. Raises `ZeError` if that is not possible, `ModelError` if nothing is found in the pool.
    """
    xml, nodes = _written(model, by_index=False)
    pieces = [Piece(node.name, node.address, node.length) for node in nodes]
    gathered = gather(pieces, "pfnCreate2", None if pool is None else _found(nodes, pool, name))
    xml = with_offsets(xml, const_layers(xml), gathered.offsets)
    return GraphSource.from_xml(name, xml, weights=gathered.files)


def _found(nodes: Sequence[ConstantNode], pool: Pool, name: str) -> dict[int, tuple[int, int]]:
    """Descriptor and offset of the constants that a pool has, by their index."""
    known: dict[int, tuple[int, int]] = {}
    for index, node in enumerate(nodes):
        entry = pool.equal(node.view(), node.name) if node.length else None
        if entry is not None:
            known[index] = (pool.fds[entry.file], entry.offset)
    if not known and any(node.length for node in nodes):
        raise ModelError(
            f"model '{name}': none of its {len(nodes)} constants is in {pool.name}; expected the weights"
            " of this model"
        )
    return known


def _written(model: ov.Model, by_index: bool) -> tuple[bytes, list[ConstantNode]]:
    """The XML, and the constants in its order. A clone is written: it shares them with `model`."""
    if by_index:
        clone = model.clone()
        clone.set_rt_info(True, "is_new_api")
        clone.set_rt_info(True, "use_indices_for_io_metadata")
        model = clone
    return serialize_ir(model, f"model '{model.get_friendly_name()}'")


def _packed(nodes: Sequence[ConstantNode]) -> tuple[dict[tuple[int, int], int], int]:
    """The offset of each constant when they lie one behind the other, and the bytes of all."""
    offsets: dict[tuple[int, int], int] = {}
    size = 0
    for node in nodes:
        if (node.address, node.length) not in offsets:
            offsets[node.address, node.length] = size
            size += node.length
    return offsets, size


def _pointer(node: ConstantNode) -> bytes:
    return b'<attribute name="WeightsPointerAttribute" version="0" mp="%d" ms="%d" />' % (
        node.address,
        node.length,
    )
