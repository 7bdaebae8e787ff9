"""Load images from their descriptors."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence

from softnpu.emulator.blob import kernel_plan
from softnpu.emulator.blob.container import BlobReader, Section
from softnpu.emulator.blob.weight_files import file_identities
from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.blob.weights import Placement
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult, refuse
from softnpu.emulator.links import engine as link
from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.emulator.openvino.cache.cpu_cache import CpuCache
from softnpu.emulator.openvino.image import LoadedImage
from softnpu.emulator.openvino.modelled_time import Modelled, host_times
from softnpu.emulator.openvino.weights.weight_files import guarded


def opened(message: link.ImageLoad, fds: Sequence[int]) -> tuple[BlobReader, Placement | None, WeightSpace]:
    """Return the blob of an image, the placement of its constants, and the space of its weights."""
    reader = BlobReader(memoryview(mmap.mmap(fds[0], message.blob_length, prot=mmap.PROT_READ)))
    section = reader.extent(Section.WEIGHTS)
    sources = fds[len(fds) - len(message.weights) :]
    space = WeightSpace(message.weights, sources, "graph", None if section is None else (fds[0], *section))
    placement = None
    if message.placement_length:
        placement = Placement.decode(os.pread(fds[1], message.placement_length, 0))
    return reader, placement, space


def load(
    message: link.ImageLoad,
    fds: Sequence[int],
    modelled: Modelled = host_times,
    cache: CpuCache | None = None,
) -> LoadedImage:
    """Load an image from its descriptors, which may be closed afterwards. Raises `Refused`."""
    if not fds:
        raise refuse(
            ZeResult.ERROR_OUT_OF_HOST_MEMORY,
            "graph",
            found="a daemon without free descriptors",
            expected="descriptors for its blob and weights",
            hint="raise the descriptor limit of the daemon",
        )
    try:
        reader, placement, space = opened(message, fds)
        sources = fds[len(fds) - len(message.weights) :]
        weights = guarded(space, sources)
        check = message.check or file_identities(sources) != message.files
        try:
            plan = kernel_plan.read(reader)
            if plan is None:
                image = LoadedImage(reader, placement, space, modelled, check, cache)
            else:
                from softnpu.emulator.openvino.kernels.image import KernelImage  # late: few models have any

                image = KernelImage(plan, reader, placement, space, modelled, check)
        finally:
            if weights is not None:  # with truncated weights OpenVINO's message is meaningless
                weights.check(reader.metadata().name)
        image.weights = weights
        return image
    except (RuntimeError, OSError, ValueError) as error:
        raise Refused(
            ErrorInfo(
                result=ZeResult.ERROR_MODULE_BUILD_FAILURE,
                object="graph",
                found=f"the engine cannot load it: {openvino_errors.reason(error)}",
                expected="a model that the device runs",
            )
        ) from error


def timed_load(
    message: link.ImageLoad, fds: Sequence[int], modelled: Modelled, cache: CpuCache | None
) -> tuple[LoadedImage, float]:
    """Load an image; return it and its load time in milliseconds."""
    start = time.perf_counter()
    image = load(message, fds, modelled, cache)
    return image, (time.perf_counter() - start) * 1e3
