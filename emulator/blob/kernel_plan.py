"""The section KERNELS: own kernels of a model, and the order in which its parts run.

The IR of such a model is cut at its kernels. What a kernel reads, and what a later part reads of an earlier
one, are further results of the IR; what a kernel gives, and what a part reads of an earlier one, further
inputs. They come behind those of the model and are *values*: tensors in memory of the engine. A part is a set
of results with the inputs that they need.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from softnpu.emulator.blob.container import BlobReader, Section
from softnpu.emulator.interface.result import ZeResult, refuse

MOST_KERNELS = 16
"""Modules of a model."""
TIMEOUT = "NPU_KERNEL_TIMEOUT_MS"
"""The property of a model with the longest time of a kernel's run."""
MOST_ELEMENTS = 1 << 32
"""Elements of all values together."""


class Value(msgspec.Struct, frozen=True, array_like=True):
    """A dense tensor. `least`: the smallest extents if its shape is dynamic; `shape` has the largest then.

    An extent below 0 has no bound, which is for ports only.
    """

    element_type: str
    shape: tuple[int, ...]
    least: tuple[int, ...] = ()

    @property
    def is_dynamic(self) -> bool:
        """Whether each inference has its own shape."""
        return bool(self.least)

    @property
    def bounds(self) -> str:
        """Return the shape as OpenVINO writes it."""
        pairs = zip(self.least or self.shape, self.shape, strict=True)
        return f"[{','.join(str(high) if low == high else f'{low}..{high}' for low, high in pairs)}]"

    def takes(self, shape: Sequence[int]) -> bool:
        """Whether it may have this shape."""
        return len(shape) == len(self.shape) and all(
            low <= extent and (extent <= high or high < 0)
            for low, extent, high in zip(self.least or self.shape, shape, self.shape, strict=True)
        )

    def covers(self, other: Value) -> bool:
        """Whether it may have all shapes of another one, of the same type."""
        return self.element_type == other.element_type and all(
            self.takes(shape) for shape in (other.shape, other.least or other.shape)
        )


class Part(msgspec.Struct, frozen=True, tag="part"):
    """Run OpenVINO: positions of results of the IR, and of the inputs that these need."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class KernelRun(msgspec.Struct, frozen=True, tag="kernel"):
    """Run kernel number `kernel` on values; `name` is that of the operation."""

    kernel: int
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: dict[str, Any] = {}


class KernelPlan(msgspec.Struct, frozen=True):
    """`parameters` and `results`: the values of the further inputs and results of the IR."""

    modules: tuple[bytes, ...]
    values: tuple[Value, ...]
    parameters: tuple[int, ...]
    results: tuple[int, ...]
    steps: tuple[Part | KernelRun, ...]


def has_room(values: Sequence[Value]) -> bool:
    """Whether values have bounds, and together not too many elements."""
    sizes = [
        math.prod(each.shape)
        for each in values
        if all(0 <= low <= high for low, high in zip(each.least or each.shape, each.shape, strict=False))
        and len(each.least) in (0, len(each.shape))
    ]
    return len(sizes) == len(values) and sum(sizes) <= MOST_ELEMENTS


def read(reader: BlobReader) -> KernelPlan | None:
    """Return the plan of a blob; None if it has no kernels. Refuses what is none."""
    if not reader.has(Section.KERNELS):
        return None
    try:
        return msgspec.msgpack.decode(reader.read(Section.KERNELS), type=KernelPlan)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refuse(
            ZeResult.ERROR_INVALID_NATIVE_BINARY,
            f"blob, section {Section.KERNELS.name}",
            found=str(error),
            expected="a KernelPlan",
        ) from error


def check(plan: KernelPlan, inputs: Sequence[Value], results: Sequence[Value]) -> None:
    """Refuse a plan that does not fit its IR, whose inputs and results have these types and shapes.

    A result may be more open than its value: a size that an earlier part computes is unknown to a later one.
    """
    found = next(_faults(plan, inputs, results), None)
    if found is not None:
        raise refuse(
            ZeResult.ERROR_INVALID_NATIVE_BINARY,
            f"blob, section {Section.KERNELS.name}",
            found=found,
            expected="a plan that fits the IR",
            hint="compile the model again",
        )


def _faults(plan: KernelPlan, inputs: Sequence[Value], results: Sequence[Value]) -> Iterator[str]:
    """Yield what is wrong; nothing behind the first is worth looking at."""
    if not 0 < len(plan.modules) <= MOST_KERNELS:
        yield f"{len(plan.modules)} kernels"
    first_input, first_result = len(inputs) - len(plan.parameters), len(results) - len(plan.results)
    if first_input < 0 or first_result < 0:
        yield "more values than the IR has inputs or results"
    further = [*zip(inputs[first_input:], plan.parameters, strict=True)]
    for port, number in [*further, *zip(results[first_result:], plan.results, strict=True)]:
        if not 0 <= number < len(plan.values) or not port.covers(plan.values[number]):
            yield f"value {number}, which is not {port.element_type} {port.bounds}"
    if any(plan.values[number] != port for port, number in further):
        yield "an input that is more open than its value"
    if not has_room(plan.values):
        yield "values without bounds, or too large"
    made: set[int] = set()
    computed: set[int] = set()
    for step in plan.steps:
        is_part = isinstance(step, Part)
        limits = (len(inputs), len(results)) if is_part else (len(plan.values), len(plan.values))
        for positions, limit in zip((step.inputs, step.outputs), limits, strict=True):
            if not all(0 <= position < limit for position in positions):
                yield f"a step with port {positions}, of {limit}"
        if isinstance(step, Part):
            needed = {plan.parameters[at - first_input] for at in step.inputs if at >= first_input}
            given = [plan.results[at - first_result] for at in step.outputs if at >= first_result]
            own = [at for at in step.outputs if at < first_result]
            if len(set(step.inputs)) < len(step.inputs):
                yield "a part with the same input twice"
        else:
            needed, given, own = set(step.inputs), list(step.outputs), []
            if not 0 <= step.kernel < len(plan.modules):
                yield f"kernel {step.kernel} of {len(plan.modules)}"
        if not needed <= made:
            yield "a step that needs what is not there yet"
        if made & set(given) or computed & set(own) or len({*given}) + len({*own}) < len(given) + len(own):
            yield "a step that gives what is there already"
        made |= set(given)
        computed |= set(own)
    if computed != set(range(first_result)):
        yield f"{len(computed)} of {first_result} results computed"
