"""Run a kernel on numpy arrays: they are placed in one memory file that the kernel's process maps."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from softnpu.emulator.common import linux
from softnpu.emulator.kernels.client import DEADLINE_MS, KernelCall, LoadedKernel
from softnpu.emulator.kernels.description import Value
from softnpu.emulator.kernels.numpy_types import TYPES
from softnpu.emulator.links.kernels import TensorPlace
from softnpu.tools.shared.failures import ToolError

Array = npt.NDArray[Any]
_PAGE: Final = mmap.PAGESIZE


def dtype(name: str) -> npt.DTypeLike:
    """Return numpy's type of an element type; raise `ToolError` if it has none."""
    if name not in TYPES:
        raise ToolError(f"type {name}", found="none of numpy's", expected=", ".join(TYPES))
    return TYPES[name]


class ArrayCall:
    """A kernel on arrays. `inputs` can be written between runs, `outputs` are those of the last. Close it."""

    def __init__(
        self,
        kernel: LoadedKernel,
        inputs: Sequence[tuple[str, tuple[int, ...]]],
        attributes: dict[str, Value],
        deadline_ms: int = DEADLINE_MS,
    ) -> None:
        """Prepare it for inputs of these types and shapes."""
        given = [TensorPlace(name, shape) for name, shape in inputs]
        tensors = [*given, *kernel.shapes(given, attributes, deadline_ms)]
        offsets, size = [], 0
        for each in tensors:
            offsets.append(size)
            size += -(-_bytes(each) // _PAGE) * _PAGE
        self._client, self._count = kernel.client, len(given)
        fd = linux.fixed_memfd("tensors", max(size, _PAGE))
        try:
            self._mapping = linux.map_shared(fd, max(size, _PAGE))
            self._memory = kernel.client.add_memory(fd)
        finally:
            os.close(fd)
        places = [
            TensorPlace(each.element_type, each.shape, self._memory, offset)
            for each, offset in zip(tensors, offsets, strict=True)
        ]
        self._arrays = [
            np.frombuffer(self._mapping, dtype(each.element_type), int(np.prod(each.shape)), each.offset)
            for each in places
        ]
        self._shapes = [each.shape for each in places]
        self.inputs = [self._array(number, self._shapes[number]) for number in range(self._count)]
        self.call: KernelCall = kernel.prepare(
            places[: self._count], places[self._count :], attributes, deadline_ms
        )

    def _array(self, number: int, shape: tuple[int, ...]) -> Array:
        return self._arrays[number][: int(np.prod(shape))].reshape(shape)

    def run(self) -> list[Array]:
        """Run it; return views of the outputs."""
        shapes = self.call.run()
        return [self._array(number, shape) for number, shape in enumerate(shapes, self._count)]

    def close(self) -> None:
        """Forget it; the arrays stay valid."""
        self.call.close()
        self._client.drop(memory=self._memory)

    def __enter__(self) -> ArrayCall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _bytes(tensor: TensorPlace) -> int:
    return int(np.prod(tensor.shape)) * np.dtype(dtype(tensor.element_type)).itemsize
