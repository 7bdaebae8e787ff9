"""Images as an engine loads them, in the process of a test."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

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
