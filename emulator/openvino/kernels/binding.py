"""Bind client memory to an image with own kernels; run its parts and kernels in turn."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from softnpu.emulator.blob.kernel_plan import KernelRun, Part
from softnpu.emulator.common import linux
from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.interface.profiling import LayerRecord, LayerStatus, TaskType
from softnpu.emulator.kernels.abi import byte_size
from softnpu.emulator.kernels.client import KernelCall, KernelClient, LoadedKernel
from softnpu.emulator.kernels.errors import Failure, KernelError, failed
from softnpu.emulator.links.kernels import TensorPlace
from softnpu.emulator.openvino.binding import Binding
from softnpu.emulator.openvino.dynamic.binding import bind_model
from softnpu.emulator.openvino.kernels.host import KernelHost, host
from softnpu.emulator.openvino.kernels.image import KernelImage


class _Prepared(NamedTuple):
    """A call in the process of kernels, and the shapes of its inputs."""

    call: KernelCall
    inputs: list[tuple[int, ...]]


class KernelBinding(Binding):
    """An inference of an image with kernels. Values between its steps lie in a memory file of its own.

    The kernels' process is asked for at the first run, and again after its end. Beside each value lies its
    shape, a shape tensor as those of dynamic arguments; shapes that the client gives are copied at the start.
    """

    __slots__ = (
        "_calls",
        "_clients",
        "_fd",
        "_given",
        "_image",
        "_parts",
        "_places",
        "_shapes",
        "_times",
        "_values",
    )

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
        self._calls: dict[int, _Prepared] = {}
        self._times: dict[int, tuple[int, int]] = {}
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
        self._shapes = [np.array(each.shape[::-1], np.int32) for each in image.plan.values]
        sources = [*views]
        self._given: list[tuple[Bytes, Bytes]] = []
        for at, argument in enumerate(image.meta.arguments):
            if argument.shape_of >= 0 and argument.input:
                sources[at] = views[at].copy()
                self._given.append((sources[at], views[at]))
        for place in self._places:
            sources.append(memory[place.offset : place.offset + byte_size(place.element_type, place.shape)])
        sources += [shape.view(np.uint8) for shape in self._shapes]
        self._parts = {
            number: bind_model(part, [sources[at] for at in part.sources], count_copied)
            for number, part in image.parts.items()
        }

    def __del__(self) -> None:
        for own in [*self._clients]:
            self._forget(own)
        if self._fd >= 0:
            os.close(self._fd)

    def run(self, is_cancelled: Callable[[], bool]) -> bool:
        """Run all steps. Raises `KernelError` with the kernel's name if one of its runs fails."""
        for copy, given in self._given:
            copy[:] = given
        for number, step in enumerate(self._image.plan.steps):
            if isinstance(step, Part):
                if not self._parts[number].run(is_cancelled):
                    return False
            elif not self._run_kernel(number, step, is_cancelled):
                return False
        return True

    def _run_kernel(self, number: int, step: KernelRun, is_cancelled: Callable[[], bool]) -> bool:
        """Run a kernel; if its process has ended, once more in another one: it only writes its outputs.

        A function of a program runs once.
        """
        own = self._image.hosts[step.kernel]
        try:
            return self._run_once(own, number, step, is_cancelled)
        except KernelError as error:
            if error.failure is not Failure.LOST or own.function is not None:
                raise
        return self._run_once(own, number, step, is_cancelled)

    def _run_once(
        self, own: KernelHost, number: int, step: KernelRun, is_cancelled: Callable[[], bool]
    ) -> bool:
        client = own.client(is_cancelled)
        if client is None:
            return False
        call = self._call(own, client, number, step)
        start = time.monotonic_ns()
        shapes = call.run_unless(is_cancelled)
        if shapes is None:
            return False
        taken = time.monotonic_ns() - start
        host.ran_ns += taken
        self._times[number] = taken, min(call.time_ns, taken)
        if call.staged:
            self._count_copied(call.staged)
        if number in self._image.open_steps:
            for value, shape in zip(step.outputs, shapes, strict=True):
                self._shapes[value][:] = shape[::-1]
        return True

    def _call(self, own: KernelHost, client: KernelClient, number: int, step: KernelRun) -> KernelCall:
        """Return a call that is prepared for the shapes of its inputs."""
        if client is not self._clients.get(own, (None, 0))[0]:
            self._forget(own)
            self._clients[own] = client, client.add_memory(self._fd)
        known = self._calls.get(number)
        if known is not None and number not in self._image.open_steps:
            return known.call
        memory = self._clients[own][1]
        inputs = [self._at(value, memory) for value in step.inputs]
        shapes = [each.shape for each in inputs]
        if known is not None and known.inputs == shapes:
            return known.call
        kernel = own.load(client, self._image.plan.modules[step.kernel])
        outputs = self._outputs(kernel, step, inputs, memory)
        call = kernel.prepare(inputs, outputs, step.attributes, self._image.deadline_ms)
        self._calls[number] = _Prepared(call, shapes)
        if known is not None:
            client.forget(call=known.call.number)
        return call

    def _outputs(
        self, kernel: LoadedKernel, step: KernelRun, inputs: Sequence[TensorPlace], memory: int
    ) -> list[TensorPlace]:
        """Return the places of the outputs, with the shapes that they have for these inputs."""
        values = [self._image.plan.values[value] for value in step.inputs]
        places = [self._places[value] for value in step.outputs]
        outputs = [msgspec.structs.replace(each, memory=memory) for each in places]
        if not any(value.is_dynamic for value in values):
            return outputs
        told = kernel.shapes(inputs, step.attributes, self._image.deadline_ms // 2)
        for at, (value, found) in enumerate(zip(step.outputs, told, strict=True)):
            known = self._image.plan.values[value]
            if not known.takes(found.shape):
                raise failed(
                    Failure.SHAPE,
                    kernel.description.full_name,
                    f"output {kernel.description.outputs[at]} of {list(found.shape)}"
                    f" for inputs {', '.join(str(list(each.shape)) for each in inputs)}",
                    f"{known.bounds}, as softnpu_shapes said for the bounds of the inputs",
                )
            outputs[at] = msgspec.structs.replace(outputs[at], shape=found.shape)
        return outputs

    def _forget(self, own: KernelHost) -> None:
        """Let a process forget what was prepared there."""
        if own not in self._clients:
            return
        client, memory = self._clients.pop(own)
        for number, step in enumerate(self._image.plan.steps):
            if isinstance(step, KernelRun) and self._image.hosts[step.kernel] is own:
                prepared = self._calls.pop(number, None)
                if prepared is not None:
                    client.forget(call=prepared.call.number)
        client.forget(memory=memory)

    def _at(self, value: int, memory: int) -> TensorPlace:
        """Return the place of a value, with its present shape."""
        shape = tuple(reversed(self._shapes[value].tolist()))
        return msgspec.structs.replace(self._places[value], shape=shape, memory=memory)

    def layers(self) -> tuple[LayerRecord, ...]:
        """Return the profile of the last inference: OpenVINO's layers, and kernels as software kernels."""
        records: list[LayerRecord] = []
        start = 0
        for number, step in enumerate(self._image.plan.steps):
            if isinstance(step, KernelRun):
                taken, own = self._times.get(number, (0, 0))
                name = self._image.names[step.kernel].rpartition(".")[2]
                more = [LayerRecord(step.name, name, TaskType.SW, LayerStatus.EXECUTED, 0, taken, own, 0)]
            else:
                more = list(self._parts[number].layers())
            for each in more:
                records.append(each._replace(start=start, layer=len(records)))
                start += each.duration
        return tuple(records)
