"""Known differences. An entry excuses single differences and is counted by its name.

`KNOWN` has open defects of softnpu: an entry is removed with its fix. `LIMITS` has the documented limits of
softnpu and OpenVINO.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.fuzz.models.compare import Difference
from tests.fuzz.models.records import Way
from tests.fuzz.models.traits import Traits


@dataclass(frozen=True)
class Seen:
    """The context of a difference. `unlike_declared`: steps where the CPU device breaks a declared shape."""

    way: Way
    traits: Traits
    unlike_declared: frozenset[int] = frozenset()


Excuse = Callable[[Seen, Difference], bool]


@dataclass(frozen=True)
class Known:
    """One kind: a name, where it is documented, and which differences belong to it."""

    name: str
    where: str
    excuses: Excuse


def _refused(*texts: str, trait: str = "", api: str = "", compiled: str = "") -> Excuse:
    """Excuse refusals with one of these texts (none: any), of models with that trait, in such a way."""

    def excuses(seen: Seen, one: Difference) -> bool:
        return (
            one.kind in ("refused alone", "untyped")
            and seen.way.api.startswith(api)
            and compiled in seen.way.compiled
            and (not trait or trait in seen.traits)
            and (not texts or any(text in one.text for text in texts))
        )

    return excuses


def _step_of(one: Difference, steps: frozenset[int]) -> bool:
    """Return whether the difference lies in one of the steps. A refusal of all implies that there are any."""
    return one.step in steps or (one.step < 0 and bool(steps))


def _open_batch(seen: Seen, one: Difference) -> bool:
    return (
        seen.way.api == "native"
        and seen.way.compiled != "compiler"
        and seen.way.run != "set"
        and "an open batch that a layout names" in seen.traits
        and one.kind in ("wrong", "refused alone")
    )


def _batch_elsewhere(seen: Seen, one: Difference) -> bool:
    return (
        seen.way.api == "native"
        and seen.way.compiled != "compiler"
        and "a batch elsewhere than in the first dimension" in seen.traits
        and one.kind in ("wrong", "refused alone")
    )


KNOWN: tuple[Known, ...] = ()
"""Removed with the fixes."""

LIMITS: tuple[Known, ...] = (
    Known(
        "a result of another shape than the model declares",
        "OpenVINO computes it so: docs/fidelity.md; refused, because static memory cannot tell",
        lambda seen, one: _step_of(one, seen.unlike_declared) and _refused()(seen, one),
    ),
    Known(
        "a result of the shape that the model declares, and another one by the CPU device",
        "OpenVINO computes it so: docs/fidelity.md",
        lambda seen, one: (
            _step_of(one, seen.unlike_declared)
            and one.kind == "wrong"
            and ", right is " in one.text
            and " wrong, at " not in one.text
        ),
    ),
    Known(
        "more than 5 dimensions, by the graph extension",
        "docs/native.md, Limits",
        _refused("expected at most 5", trait="more than 5 dimensions", api="native"),
    ),
    Known(
        "states and a batch that OpenVINO's plugin looks for",
        "docs/native.md, Limits: it asks arguments of states for a shape that they do not have",
        _refused("shapeFromIRModel", trait="states", api="native"),
    ),
    Known(
        "a state that is set, and other numbers of inputs and outputs, by OpenVINO's plugin",
        "docs/native.md, Limits: it looks for the state's output where the input is",
        _refused("_M_range_check", trait="states", api="native"),
    ),
    Known(
        "open dimensions without a bound, by OpenVINO's plugin",
        "docs/native.md, Limits",
        _refused(
            "OUT_OF_DEVICE_MEMORY", "Cannot allocate memory", trait="open without a bound", api="native"
        ),
    ),
    Known(
        "a dynamic batch that is not set as a tensor, by OpenVINO's plugin",
        "docs/native.md, Limits: it looks at tensors that are set, and writes one row into its own",
        _open_batch,
    ),
    Known(
        "an output beside the batch, by OpenVINO's plugin",
        "docs/native.md, Limits: all outputs are taken to have the samples in their first dimension",
        lambda seen, one: (
            seen.way.api == "native"
            and seen.way.compiled != "compiler"
            and one.kind == "wrong"
            and one.output in seen.traits.beside_batch
        ),
    ),
    Known(
        "a batch that a layout names elsewhere than in the first dimension, by OpenVINO's plugin",
        "docs/native.md, Limits: it takes the first dimension for the batch all the same",
        _batch_elsewhere,
    ),
    Known(
        "a model without weights, weightless by OpenVINO's plugin",
        "it looks for an attribute of constants",
        _refused("WeightlessCacheAttribute", api="native", compiled="weightless"),
    ),
    Known(
        "a shape outside of the bounds",
        "docs/plugin.md, Dynamic shapes: refused before anything happens; the CPU device takes some",
        lambda seen, one: one.step in seen.traits.outside and _refused()(seen, one),
    ),
    Known(
        "a shape that needs more than the memory of a request's own tensor",
        "docs/plugin.md, Dynamic shapes: setting the shape of a tensor does not grow it",
        lambda seen, one: (
            seen.way.run == "inplace" and _refused("too much for the memory", api="plugin")(seen, one)
        ),
    ),
    Known(
        "a product whose inner dimensions differ",
        "docs/reliability.md: the CPU device reads behind a shorter input",
        _refused("/inner "),
    ),
    Known(
        "more indices than elements, longer parts than data, or fewer channels than a RegionYolo has",
        "docs/reliability.md: the CPU device reads and writes behind the end of its tensors",
        _refused("/guarded'", "(ScatterElementsUpdate)", "(VariadicSplit)", "(Pad)", "DFT)", "(RegionYolo)"),
    ),
    Known(
        "a batch that PLUGIN cannot split",
        "docs/plugin.md, Batch",
        _refused("PLUGIN cannot split", "NPU_BATCH_MODE", compiled="split"),
    ),
    Known(
        "inputs with batches of different lengths",
        "docs/plugin.md, Batch: all batched inputs need the same number of samples",
        _refused("expected the same number of samples in all inputs", api="plugin"),
    ),
    Known(
        "a batch of no samples",
        "docs/plugin.md, Batch: refused with names and numbers before anything has an effect",
        _refused("that of the batch; expected at least 1", api="plugin"),
    ),
    Known(
        "a sorted Unique of NaNs",
        "docs/fidelity.md, numbers: the CPU device leaves numbers of an inference before",
        lambda seen, one: one.kind == "wrong" and one.output in seen.traits.after_nans,
    ),
    Known(
        "what the CPU device may compute wrongly",
        "docs/defects.md: the right numbers are tested in tests/openvino",
        lambda seen, one: (
            (one.kind == "wrong" and one.output in seen.traits.after_faults)
            or (one.kind == "accepted alone" and bool(seen.traits.after_faults))
        ),
    ),
    Known(
        "states of types that the CPU device refuses",
        "docs/plugin.md, States",
        lambda seen, one: (
            one.kind == "accepted alone" and "states that the CPU device refuses" in seen.traits
        ),
    ),
)

INHERITED = "OpenVINO's CPU device does the same, used in the same way"
"""Its own request, reused or with tensors set, is wrong or refuses."""
WRONG_TOO = "OpenVINO's CPU device, used in the same way, is wrong in the same outputs"
"""With other numbers: it depends on uninitialised memory, or on how threads share the work."""
WRITTEN_TOO = "OpenVINO cannot read the model that it has written"
"""Every softnpu way begins with a serialised model."""
ONE_BY_ONE = "samples that OpenVINO's plugin computes one by one, and that depend on each other"
"""docs/native.md, Limits: left to the compiler, the model is computed."""
DIED_TOO = "OpenVINO's CPU device, used in the same way, ends its process too"
"""States are then inputs and outputs, and a batch is split, as in the engine."""


def unexcused(seen: Seen, differences: Sequence[Difference]) -> tuple[list[Difference], list[str]]:
    """Return the unexcused differences, and the names of the others' excuses."""
    left: list[Difference] = []
    names: list[str] = []
    stopped: dict[int, int] = {}  # by request: the first refused step
    for one in differences:
        name = next((entry.name for entry in (*LIMITS, *KNOWN) if entry.excuses(seen, one)), "")
        if not name:
            left.append(one)
        else:
            if name not in names:
                names.append(name)
            if "refused" in one.kind:
                stopped[one.turn] = min(one.step, stopped.get(one.turn, one.step))
    if "states" in seen.traits:  # a refused step does not change a state
        left = [
            one
            for one in left
            if not (one.output in seen.traits.after_states and one.step > stopped.get(one.turn, one.step))
        ]
    return left, names
