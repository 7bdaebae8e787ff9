"""Bind client memory to an image with own kernels; run its parts and kernels in turn."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from softnpu.emulator.blob.kernel_plan import KernelRun, Part
from softnpu.emulator.common import linux
from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.interface.profiling import LayerRecord, LayerStatus, TaskType
from softnpu.emulator.kernels.abi import byte_size
from softnpu.emulator.kernels.client import KernelCall, KernelClient
from softnpu.emulator.kernels.errors import Failure, KernelError
from softnpu.emulator.links.kernels import TensorPlace
from softnpu.emulator.openvino.binding import Binding
from softnpu.emulator.openvino.kernels.host import KernelHost
from softnpu.emulator.openvino.kernels.image import KernelImage


class KernelBinding(Binding):
    """An inference of an image with kernels. Values between its steps lie in a memory file of its own.

    The kernels' process is asked for at the first run, and again after its end.
    """

    __slots__ = ("_calls", "_clients", "_fd", "_image", "_parts", "_places", "_times", "_values")

    def __init__(
        self, image: KernelImage, views: Sequence[Bytes], count_copied: Callable[[int], None]
    ) -> None:
        self.views = views
        self.is_short = self._started = False
        self._count_copied = count_copied
        self._copies = []
        self._image = image
        self._clients: dict[KernelHost, tuple[KernelClient, int]] = {}
        self._fd = -1
        self._calls: dict[int, KernelCall] = {}
        self._times: dict[int, int] = {}
        offsets, size = [], 0
        for each in image.plan.values:
            offsets.append(size)
            size += -(-byte_size(each.element_type, each.shape) // mmap.PAGESIZE) * mmap.PAGESIZE
        size = max(size, mmap.PAGESIZE)
        self._fd = linux.fixed_memfd("values", size)
        self._values = linux.map_shared(self._fd, size)
        memory = np.frombuffer(self._values, np.uint8)
        self._places = [
            TensorPlace(each.element_type, each.shape, 0, offset)
            for each, offset in zip(image.plan.values, offsets, strict=True)
        ]
        sources = [*views]
        for place in self._places:
            sources.append(memory[place.offset : place.offset + byte_size(place.element_type, place.shape)])
        self._parts = {
            number: Binding(part, [sources[at] for at in part.sources], count_copied)
            for number, part in image.parts.items()
        }

    def __del__(self) -> None:
        for host in [*self._clients]:
            self._forget(host)
        if self._fd >= 0:
            os.close(self._fd)

    def run(self, is_cancelled: Callable[[], bool]) -> bool:
        """Run all steps. Raises `KernelError` with the kernel's name if one of its runs fails."""
        for number, step in enumerate(self._image.plan.steps):
            if isinstance(step, Part):
                if not self._parts[number].run(is_cancelled):
                    return False
            elif not self._run_kernel(number, is_cancelled):
                return False
        return True

    def _run_kernel(self, number: int, is_cancelled: Callable[[], bool]) -> bool:
        """Run a kernel; if its process has ended, once more in another one: it only writes its outputs.

        A function of a program runs once.
        """
        start = time.monotonic_ns()
        host = self._host(number)
        for is_last in (False, True) if host.function is None else (True,):
            client = host.client(is_cancelled)
            if client is None:
                return False
            try:
                if client is not self._clients.get(host, (None, 0))[0]:
                    self._prepare(host, client)
                call = self._calls[number]
                if not call.run_unless(is_cancelled):
                    return False
                break
            except KernelError as error:
                if is_last or error.failure is not Failure.LOST:
                    raise
        self._times[number] = time.monotonic_ns() - start
        if call.staged:
            self._count_copied(call.staged)
        return True

    def _host(self, number: int) -> KernelHost:
        """Return what runs the kernel of a step."""
        step = self._image.plan.steps[number]
        assert isinstance(step, KernelRun)
        return self._image.hosts[step.kernel]

    def _prepare(self, host: KernelHost, client: KernelClient) -> None:
        self._forget(host)
        memory = client.add_memory(self._fd)
        self._clients[host] = client, memory
        for number, step in enumerate(self._image.plan.steps):
            if isinstance(step, KernelRun) and self._host(number) is host:
                inputs, outputs = (
                    [self._at(value, memory) for value in each] for each in (step.inputs, step.outputs)
                )
                kernel = host.load(client, self._image.plan.modules[step.kernel])
                self._calls[number] = kernel.prepare(inputs, outputs, step.attributes, host.deadline_ms)

    def _forget(self, host: KernelHost) -> None:
        """Let a process forget what was prepared there."""
        if host not in self._clients:
            return
        client, memory = self._clients.pop(host)
        for number in [each for each in self._calls if self._host(each) is host]:
            client.forget(call=self._calls.pop(number).number)
        client.forget(memory=memory)

    def _at(self, value: int, memory: int) -> TensorPlace:
        place = self._places[value]
        return TensorPlace(place.element_type, place.shape, memory, place.offset)

    def layers(self) -> tuple[LayerRecord, ...]:
        """Return the profile of the last inference: OpenVINO's layers, and kernels as software kernels."""
        records: list[LayerRecord] = []
        start = 0
        for number, step in enumerate(self._image.plan.steps):
            if isinstance(step, KernelRun):
                taken = self._times.get(number, 0)
                name = self._image.names[step.kernel].rpartition(".")[2]
                more = [LayerRecord(step.name, name, TaskType.SW, LayerStatus.EXECUTED, 0, taken, taken, 0)]
            else:
                more = list(self._parts[number].layers())
            for each in more:
                records.append(each._replace(start=start, layer=len(records)))
                start += each.duration
        return tuple(records)
