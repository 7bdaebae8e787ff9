"""Images as an engine loads them, in the process of a test."""

from __future__ import annotations

import os

from softnpu.emulator.common import linux
from softnpu.emulator.links import engine as link
from softnpu.emulator.openvino import loading
from softnpu.emulator.openvino.cache.cpu_cache import CpuCache
from softnpu.emulator.openvino.image import LoadedImage


def load(blob: bytes, cache: CpuCache | None = None) -> LoadedImage:
    """Load the image of a blob with its weights inside."""
    fd = linux.sealed_copy("blob", blob)
    try:
        return loading.load(link.ImageLoad(image=1, state=0, blob_length=len(blob)), [fd], cache=cache)
    finally:
        os.close(fd)
