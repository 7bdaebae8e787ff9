"""`python -m softnpu.tools.stress.references FOLDER SEED [MODEL...]`: models and their expected results.

A process of its own: it alone loads OpenVINO, so that clients stay small and start quickly. Expected results
come from OpenVINO's CPU device with the properties of a default compilation; they must match bit by bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset6
from openvino import opset13 as ops

from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.emulator.openvino.defects import saturated_sums
from softnpu.tools.demo.digits import model_path
from softnpu.tools.models.catalogue import CATALOGUE
from softnpu.tools.models.fetch import cached
from softnpu.tools.stress.workloads import OWN_MODELS, Array, Workload, write_list

CPU: Final = {
    "INFERENCE_PRECISION_HINT": "f32",
    "PERFORMANCE_HINT": "LATENCY",
    "EXECUTION_MODE_HINT": "ACCURACY",
    **saturated_sums.properties(),
}
THROUGHPUT: Final = {**CPU, "PERFORMANCE_HINT": "THROUGHPUT"}
_SAMPLES: Final = 6
_STEPS: Final = 4


def main(arguments: Sequence[str]) -> int:
    """Write `workloads.json`, the models and their archives of arrays; print and return 1 for a bad model."""
    folder, seed, given = Path(arguments[0]), int(arguments[1]), arguments[2:]
    random = np.random.default_rng(seed)
    core = ov.Core()
    try:
        models = _models(core, given, random)
        workloads = [_workload(core, folder, index, model, random) for index, model in enumerate(models)]
    except RuntimeError as error:
        print(openvino_errors.reason(error), file=sys.stderr)
        return 1
    write_list(folder, workloads)
    return 0


def _models(core: ov.Core, given: Sequence[str], random: np.random.Generator) -> list[ov.Model]:
    """Return the named models in that order; all own ones without names."""
    # all of them are made: a model is the same whether it runs alone or among the others
    own = dict(zip(OWN_MODELS, _own_models(core, random), strict=True))
    return [own[name] if name in own else _given_model(core, name) for name in given or OWN_MODELS]


def _given_model(core: ov.Core, name: str) -> ov.Model:
    """Return a file, or a catalogue model with its shapes."""
    entry = CATALOGUE.get(name)
    path = None if entry is None else cached(entry)
    if entry is None or path is None:
        model = core.read_model(name)
    else:
        model = core.read_model(path)
        model.reshape({port: list(shape) for port, shape in entry.shapes.items()})
    model.set_friendly_name(Path(name).stem)
    return model


def _own_models(core: ov.Core, random: np.random.Generator) -> list[ov.Model]:
    """Return small models of different kinds: an inference costs far below a millisecond."""
    return [
        core.read_model(model_path()),
        _perceptron(random),
        _convolutions(random),
        _attention(random),
        _running_sums(random),
        _two_outputs(random),
    ]


def _perceptron(random: np.random.Generator) -> ov.Model:
    width = int(random.integers(24, 96))
    data = _input([1, width], "data")
    value: Any = data
    for _ in range(int(random.integers(2, 5))):
        weights = ops.constant(random.standard_normal((width, width), dtype=np.float32) / width**0.5)
        value = ops.tanh(ops.matmul(value, weights, False, False))
    return _model("perceptron", [value], [data])


def _convolutions(random: np.random.Generator) -> ov.Model:
    image = _input([1, 3, 16, 16], "image")
    value: Any = image
    channels = 3
    for wanted in (8, 12):
        weights = ops.constant(random.standard_normal((wanted, channels, 3, 3), dtype=np.float32) / 8)
        value = ops.relu(ops.convolution(value, weights, [1, 1], [1, 1], [1, 1], [1, 1]))
        channels = wanted
    pooled = ops.reduce_mean(value, ops.constant([2, 3], ov.Type.i64), keep_dims=False)
    return _model("convolutions", [pooled], [image])


def _attention(random: np.random.Generator) -> ov.Model:
    """Return a model without constants: a matrix times itself, normalised, a few times."""
    size = int(random.integers(24, 64))
    matrix = _input([size, size], "matrix")
    value: Any = matrix
    for _ in range(3):
        value = ops.softmax(ops.matmul(value, matrix, False, True), axis=1)
    return _model("attention", [value], [matrix])


def _running_sums(random: np.random.Generator) -> ov.Model:
    """Return a model with two states: one sums the input, the other counts inferences."""
    width = int(random.integers(4, 32))
    data = _input([1, width], "data")
    zeros = ops.constant(np.zeros((1, width), np.float32))
    total = opset6.read_value(zeros, "total", ov.Type.f32, [1, width])
    count = opset6.read_value(ops.constant(np.full((1,), 2.0, np.float32)), "count", ov.Type.f32, [1])
    added = ops.add(total, data)
    counted = ops.add(count, ops.constant(np.ones((1,), np.float32)))
    assigns = [ops.assign(added, "total"), ops.assign(counted, "count")]
    return _model("running-sums", [ops.divide(added, counted)], [data], assigns)


def _two_outputs(random: np.random.Generator) -> ov.Model:
    rows = int(random.integers(8, 40))
    left, right = _input([rows, 16], "left"), _input([16, rows], "right")
    product = ops.matmul(left, right, False, False)
    return _model("two-outputs", [ops.sigmoid(product), ops.reduce_sum(product, [0], False)], [left, right])


def _input(shape: list[int], name: str) -> Any:
    node = ops.parameter(shape, ov.Type.f32, name=name)
    node.output(0).set_names({name})
    return node


def _model(name: str, outputs: list[Any], inputs: list[Any], assigns: Sequence[Any] = ()) -> ov.Model:
    results = []
    for index, value in enumerate(outputs):
        value.output(0).set_names({f"result{index}"})
        results.append(ops.result(value))
    return ov.Model(results, list(assigns), inputs, name)


def _workload(
    core: ov.Core, folder: Path, index: int, model: ov.Model, random: np.random.Generator
) -> Workload:
    name = model.get_friendly_name()
    shapes = {}
    for port in model.inputs:
        if port.partial_shape.is_dynamic:
            shapes[port.any_name] = tuple(_smallest(dimension) for dimension in port.partial_shape)
    if shapes:
        model.reshape({key: list(shape) for key, shape in shapes.items()})
    xml = folder / f"{index}.xml"
    ov.serialize(model, xml)
    request = core.compile_model(core.read_model(xml), "CPU", CPU).create_infer_request()
    steps = _STEPS if model.get_variables() else 1
    streams = core.compile_model(core.read_model(xml), "CPU", THROUGHPUT).create_infer_request()
    same = True
    kinds = {it.get_info().variable_id: it.get_info().data_type for it in model.get_variables()}
    # a state that the CPU device keeps in another precision is no reference for ours
    names = sorted(
        state.name for state in request.query_state() if state.state.element_type == kinds.get(state.name)
    )
    arrays: dict[str, Array] = {}
    for sample in range(_SAMPLES):
        request.reset_state()
        streams.reset_state()
        for step in range(steps):
            given = [_random_array(port, random) for port in model.inputs]
            computed = request.infer(given)
            arrays.update({f"in.{sample}.{step}.{at}": array for at, array in enumerate(given)})
            outputs = [np.array(computed[port]) for port in request.model_outputs]
            others = streams.infer(given)
            same = same and all(
                one.tobytes() == others[port].tobytes()
                for one, port in zip(outputs, streams.model_outputs, strict=True)
            )
            arrays.update({f"out.{sample}.{step}.{at}": array for at, array in enumerate(outputs)})
            states = {state.name: np.array(state.state.data) for state in request.query_state()}
            arrays.update({f"state.{sample}.{step}.{at}": states[name] for at, name in enumerate(names)})
    archive = folder / f"{index}.npz"
    np.savez(archive, **arrays)  # type: ignore[arg-type]
    return Workload(
        name=name,
        xml=str(xml),
        archive=str(archive),
        inputs=len(model.inputs),
        outputs=len(model.outputs),
        samples=_SAMPLES,
        steps=steps,
        states=names,
        streams=same,
    )


def _smallest(dimension: Any) -> int:
    return int(dimension.get_length()) if dimension.is_static else max(1, int(dimension.get_min_length()))


def _random_array(port: Any, random: np.random.Generator) -> Array:
    kind, shape = np.dtype(port.element_type.to_dtype()), tuple(port.shape)
    whole: Callable[..., Array] = random.integers
    if kind.kind == "f":
        return random.random(shape).astype(kind)
    # small numbers are valid indices and masks alike
    return whole(0, 2, shape).astype(kind)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
