"""Images as an engine loads them, in the process of a test."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

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


def compiled(context: Context, xml: Path) -> LoadedImage:
    """Load the image of what a compiler makes of a model."""
    with GraphSource.from_ir(xml) as source, context.create_graph(source) as graph:
        return load(bytes(graph.get_native_binary()))


class MakerAtOnce(CopyMaker):
    """Makes copies in the thread that asks."""

    def _put(self, job: Callable[[], None]) -> None:
        job()


def product(context: Context, folder: Path) -> LoadedImage:
    """Load a model whose only layer is a product; OpenVINO divides its sums among the threads."""
    generator = np.random.default_rng(0)
    x = ops.parameter([1, 4096], np.float32, name="x")
    weights = ops.constant((generator.standard_normal((4096, 2)) / 64).astype(np.float32))
    bias = ops.constant(generator.standard_normal(2).astype(np.float32))
    y = ops.relu(ops.add(ops.matmul(x, weights, False, False), bias))
    ov.serialize(ov.Model([y], [x], "product"), folder / "product.xml")
    return compiled(context, folder / "product.xml")
