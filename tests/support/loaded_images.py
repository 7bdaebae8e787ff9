"""Images as an engine loads them, in the process of a test."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops

from softnpu.driver import Context, GraphSource
from softnpu.emulator.common import linux
from softnpu.emulator.links import engine as link
from softnpu.emulator.openvino import loading
from softnpu.emulator.openvino.cache.cpu_cache import CpuCache
from softnpu.emulator.openvino.copies import CopyMaker
from softnpu.emulator.openvino.image import LoadedImage


def load(blob: bytes, cache: CpuCache | None = None) -> LoadedImage:
    """Load the image of a blob with its weights inside."""
    fd = linux.sealed_copy("blob", blob)
    try:
        return loading.load(link.ImageLoad(image=1, state=0, blob_length=len(blob)), [fd], cache=cache)
    finally:
        os.close(fd)


def compiled(context: Context, xml: Path, config: dict[str, str] | None = None) -> LoadedImage:
    """Load the image of what a compiler makes of a model."""
    with GraphSource.from_ir(xml) as source, context.create_graph(source, config or {}) as graph:
        return load(bytes(graph.get_native_binary()))


class MakerAtOnce(CopyMaker):
    """Makes copies in the thread that asks."""

    def _put(self, job: Callable[[], None]) -> None:
        job()


def branch(value: Any) -> Any:
    """Return a value through an `If` that depends on it."""
    bodies = []
    for factor in (2.0, 3.0):
        inner = ops.parameter(value.output(0).get_partial_shape(), ov.Type.f32)
        bodies.append((inner, ov.Model([ops.multiply(inner, np.float32(factor))], [inner])))
    chosen = ops.if_op(ops.greater(ops.reduce_sum(value, np.arange(4), False), np.float32(0)).output(0))
    chosen.set_then_body(bodies[0][1])
    chosen.set_else_body(bodies[1][1])
    chosen.set_input(value.output(0), bodies[0][0], bodies[1][0])
    return chosen.set_output(bodies[0][1].results[0], bodies[1][1].results[0])
