"""An image with own kernels: one compiled model for each part of its plan."""

from __future__ import annotations

import msgspec
import openvino as ov

from softnpu.emulator.blob.container import ArgumentMeta, BlobReader, GraphMeta
from softnpu.emulator.blob.kernel_plan import TIMEOUT, KernelPlan, KernelRun, Part, Value
from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.blob.weights import Placement
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.kernels import description
from softnpu.emulator.kernels.abi import byte_size
from softnpu.emulator.openvino.compilation import Compilation, computes_sizes, other_shapes
from softnpu.emulator.openvino.defects import shared_tensors
from softnpu.emulator.openvino.image import LoadedImage
from softnpu.emulator.openvino.kernels.host import host
from softnpu.emulator.openvino.modelled_time import Modelled


class LoadedPart(Compilation):
    """A compiled part, as its binding takes it. `sources`: the memory of its arguments.

    A source is an argument of the graph; behind these come the values, and behind those their shapes.
    """

    def __init__(
        self, model: ov.Model, meta: GraphMeta, sources: tuple[int, ...], space: WeightSpace
    ) -> None:
        self.meta, self.sources, self._space = meta, sources, space
        self.computes_sizes = computes_sizes(model)
        self._begin(model)
        self.unbound = frozenset(other_shapes(meta, self.compiled))
        self.origins = shared_tensors.origins(self.compiled)


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
        self.open_steps = frozenset(
            number
            for number, step in enumerate(plan.steps)
            if isinstance(step, KernelRun)
            and any(plan.values[value].is_dynamic for value in (*step.inputs, *step.outputs))
        )
        """Kernels with values of changing shapes."""
        self.names = [description.read(each).full_name for each in plan.modules]
        super().__init__(reader, placement, space, modelled, check)
        self.deadline_ms = _deadline_ms(self.meta)
        for each in dict.fromkeys(self.hosts):
            each.client(lambda: False)  # its start takes longer than a command may

    def _build(self, model: ov.Model) -> None:
        """Compile each part, by the number of its step."""
        parameters, results = model.get_parameters(), model.get_results()
        for number, step in enumerate(self.plan.steps):
            if not isinstance(step, Part):
                continue
            part = ov.Model(
                [results[at] for at in step.outputs],
                [parameters[at] for at in step.inputs],
                f"{self.meta.name}, part {number}",
            )
            arguments = self._arguments(step)
            meta = msgspec.structs.replace(
                self.meta, arguments=tuple(argument for argument, _ in arguments), states=()
            )
            sources = tuple(source for _, source in arguments)
            self.parts[number] = LoadedPart(part, meta, sources, self._space)
        self.has_layers = any(part.has_layers for part in self.parts.values())
        self.is_unfused = any(part.is_unfused for part in self.parts.values())

    def _examine(self) -> None:
        self.origins, self.streams = {}, 1

    def renew(self) -> None:
        """Compile all parts again that have to be."""
        for part in self.parts.values():
            part.renew()

    def _arguments(self, step: Part) -> list[tuple[ArgumentMeta, int]]:
        """Return the arguments of a part, each with its source; shape tensors follow their side."""
        found: list[tuple[ArgumentMeta, int]] = []
        for positions, is_input, further in (
            (step.inputs, True, self.plan.parameters),
            (step.outputs, False, self.plan.results),
        ):
            own = [
                at
                for at, each in enumerate(self.meta.arguments)
                if each.input is is_input and each.shape_of < 0
            ]
            shapes = []
            for position in positions:
                if position < len(own):
                    at = own[position]
                    argument, source = self.meta.arguments[at], at
                    shape_source = self.meta.shape_tensors.get(at, -1)
                else:
                    number = further[position - len(own)]
                    argument = _argument(number, self.plan.values[number], is_input)
                    source = len(self.meta.arguments) + number
                    shape_source = source + len(self.plan.values)
                if argument.is_dynamic:
                    shapes.append((_shape_tensor(argument, len(found)), shape_source))
                found.append((argument, source))
            found += shapes
        return found


def _deadline_ms(meta: GraphMeta) -> int:
    """Return how long a run may last; refuse more than a command has, as the engine would end with it."""
    asked = int(meta.config.get(TIMEOUT, "0"))
    if asked > host.deadline_ms:
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            f"model '{meta.name}', property {TIMEOUT}",
            found=f"{asked}",
            expected=f"at most {host.deadline_ms}, half of the time that a command of this daemon may take",
            hint="start the daemon with a larger --tdr-ms",
            property=TIMEOUT,
        )
    return asked or host.deadline_ms


def _argument(number: int, value: Value, is_input: bool) -> ArgumentMeta:
    return ArgumentMeta(
        name=f"value {number}",
        names=(),
        input=is_input,
        element_type=value.element_type,
        shape=value.shape,
        layout="",
        byte_size=byte_size(value.element_type, value.shape),
        partial_shape=value.bounds if value.is_dynamic else "",
    )


def _shape_tensor(argument: ArgumentMeta, index: int) -> ArgumentMeta:
    rank = len(argument.shape)
    return ArgumentMeta(
        name=f"shape of {argument.name}",
        names=(),
        input=argument.input,
        element_type="i32",
        shape=(rank,),
        layout="",
        byte_size=4 * rank,
        shape_of=index,
    )
