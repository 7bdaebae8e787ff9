"""What a job needs before a model can be compiled or loaded in its precision."""

from __future__ import annotations

from softnpu.emulator.arithmetic import library
from softnpu.emulator.arithmetic.settings import PRECISION
from softnpu.emulator.compiler.stages import Stages


def prepare(precision: str, stages: Stages) -> None:
    """Build the extension that rounds, if the precision is f16 and it is missing: the engine only loads it.

    Takes some seconds, once for a release of OpenVINO. Refuses with `ERROR_UNSUPPORTED_FEATURE` and the next
    step what cannot be built.
    """
    if precision == PRECISION:
        library.ensure(lambda: stages.advance(0.0))
