"""The OpenVINO runtime shared by a worker's jobs, and the record of a finished job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from softnpu.emulator.links.compiler import Result

if TYPE_CHECKING:
    import openvino as ov


class JobResult(msgspec.Struct, frozen=True):
    """A finished job: the answer, and the descriptors that go with it. Whoever holds it closes them.

    `after` is done once the answer is sent.
    """

    answer: Result
    fds: tuple[int, ...] = ()
    after: Callable[[], None] | None = None


class Runtime:
    """The one OpenVINO runtime of a worker, loaded by the first job that needs it and kept.

    Nothing of a job outlives it: no model, no mapping, no descriptor besides those of the product.
    """

    def __init__(self) -> None:
        self._core: ov.Core | None = None
        self._capabilities: tuple[str, ...] = ()

    @property
    def core(self) -> ov.Core:
        """OpenVINO's core."""
        return self.load() if self._core is None else self._core

    def load(self) -> ov.Core:
        """Load OpenVINO and its CPU plugin."""
        import openvino as ov

        self._core = ov.Core()
        self._capabilities = tuple(self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
        return self._core

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The CPU plugin's OPTIMIZATION_CAPABILITIES."""
        return self._capabilities if self.core else ()
