"""An image with own kernels: one compiled model for each part of its plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import openvino as ov

from softnpu.emulator.blob.container import ArgumentMeta, BlobReader, GraphMeta
from softnpu.emulator.blob.kernel_plan import KernelPlan, Part, Value
from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.blob.weights import Placement
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.kernels import description
from softnpu.emulator.kernels.abi import byte_size
from softnpu.emulator.openvino.defects import shared_tensors
from softnpu.emulator.openvino.image import LoadedImage
from softnpu.emulator.openvino.kernels.host import host
from softnpu.emulator.openvino.modelled_time import Modelled


@dataclass(frozen=True)
class LoadedPart:
    """A compiled part, as `Binding` takes it. `sources`: the memory of its arguments.

    A source is an argument of the graph, or a value, which counts from the number of arguments on.
    """

    meta: GraphMeta
    compiled: ov.CompiledModel
    origins: Mapping[int, shared_tensors.Origin]
    sources: tuple[int, ...]
    unbound: frozenset[int] = frozenset()
    separated: frozenset[int] = frozenset()


class KernelImage(LoadedImage):
    """An image whose `parts` run in turns with kernels. It has one stream and is in no cache."""

    has_kernels = True

    def __init__(
        self,
        plan: KernelPlan,
        reader: BlobReader,
        placement: Placement | None,
        space: WeightSpace,
        modelled: Modelled,
        check: bool,
    ) -> None:
        host.check(reader.metadata().name, plan.modules)
        self.hosts = [host.of(each) for each in plan.modules]
        self.plan = plan
        self.parts: dict[int, LoadedPart] = {}
        self.names = [description.read(each).full_name for each in plan.modules]
        super().__init__(reader, placement, space, modelled, check)
        for each in dict.fromkeys(self.hosts):
            each.client(lambda: False)  # its start takes longer than a command may

    def _build(self, model: ov.Model) -> None:
        """Compile each part, by the number of its step."""
        if self.computes_sizes:
            raise refuse(
                ZeResult.ERROR_UNSUPPORTED_FEATURE,
                f"model '{self.meta.name}'",
                found="sizes that are computed, in a model with kernels",
                expected="static shapes",
            )
        parameters, results = model.get_parameters(), model.get_results()
        for number, step in enumerate(self.plan.steps):
            if not isinstance(step, Part):
                continue
            part = ov.Model(
                [results[at] for at in step.outputs],
                [parameters[at] for at in step.inputs],
                f"{self.meta.name}, part {number}",
            )
            self._compile(part)
            arguments = self._arguments(step)
            self.parts[number] = LoadedPart(
                meta=msgspec.structs.replace(
                    self.meta, arguments=tuple(argument for argument, _ in arguments), states=()
                ),
                compiled=self.compiled,
                origins=shared_tensors.origins(self.compiled),
                sources=tuple(source for _, source in arguments),
            )

    def _examine(self) -> None:
        self.separated, self.unbound, self.origins, self.streams = frozenset(), frozenset(), {}, 1

    def _arguments(self, step: Part) -> list[tuple[ArgumentMeta, int]]:
        """Return the arguments of a part, each with its source."""
        found = []
        for positions, is_input, further in (
            (step.inputs, True, self.plan.parameters),
            (step.outputs, False, self.plan.results),
        ):
            own = [at for at, each in enumerate(self.meta.arguments) if each.input is is_input]
            for position in positions:
                if position < len(own):
                    found.append((self.meta.arguments[own[position]], own[position]))
                else:
                    number = further[position - len(own)]
                    value = self.plan.values[number]
                    found.append((_argument(number, value, is_input), len(self.meta.arguments) + number))
        return found


def _argument(number: int, value: Value, is_input: bool) -> ArgumentMeta:
    return ArgumentMeta(
        name=f"value {number}",
        names=(),
        input=is_input,
        element_type=value.element_type,
        shape=value.shape,
        layout="",
        byte_size=byte_size(value.element_type, value.shape),
    )
