"""Images as an engine loads them, in the process of a test."""

from __future__ import annotations

import os

from softnpu.emulator.common import linux
from softnpu.emulator.engine import executor
from softnpu.emulator.engine.cpu_cache import CpuCache
from softnpu.emulator.engine.executor import LoadedImage
from softnpu.emulator.links import engine as link


def load(blob: bytes, cache: CpuCache | None = None) -> LoadedImage:
    """Load the image of a blob with its weights inside."""
    fd = linux.sealed_copy("blob", blob)
    try:
        return executor.load(link.ImageLoad(image=1, state=0, blob_length=len(blob)), [fd], cache=cache)
    finally:
        os.close(fd)
