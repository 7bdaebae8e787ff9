"""Checks the batch described by an untrusted file against its graph."""

from __future__ import annotations

import math

from softnpu.emulator.blob.container import GraphMeta
from softnpu.plugin.signature import PortSpec, Signature


def batch_mismatch(signature: Signature, meta: GraphMeta) -> str:
    """Return the reason why the batch does not fit the graph; empty if it fits, or without a batch.

    The graph must have the arguments of all ports.
    """
    batched = [port for port in signature.ports if port.batch_axis >= 0]
    if not signature.batch:
        return f"'{batched[0].name}' has a batch, the model none" if batched else ""
    if not any(port.batch_axis >= 0 for port in signature.inputs):
        return "no input has the batch"
    unbatched = next((port for port in signature.outputs if port.batch_axis < 0), None)
    if unbatched is not None:
        return f"output '{unbatched.name}' has no batch"
    port = next((port for port in batched if not _fits(port, meta)), None)
    if port is None:
        return ""
    return f"'{port.name}' is no batch of what the graph has as argument {port.argument}"


def _fits(port: PortSpec, meta: GraphMeta) -> bool:
    argument, axis = meta.arguments[port.argument], port.batch_axis
    try:
        partial = port.partial_shape
    except (RuntimeError, TypeError, ValueError):
        return False
    if partial.rank.is_dynamic or len(partial) != len(argument.shape) or axis >= len(partial):
        return False
    if argument.partial_shape or port.shape_argument >= 0 or argument.shape[axis] != port.per_sample:
        return False
    others = [at for at in range(len(partial)) if at != axis]
    if any(partial[at].is_dynamic or partial[at].get_length() != argument.shape[at] for at in others):
        return False
    return port.per_sample > 0 and (math.prod(argument.shape[:axis]) == 1 or argument.strides)
