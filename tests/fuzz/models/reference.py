"""The reference: OpenVINO's CPU device in f32, nothing bound, a new request for every step.

A request that has had another shape can itself be stale. The other forms are evidence about differences:
whether OpenVINO alone, asked in another way, agrees.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from softnpu.emulator.common.model_bodies import all_bodies
from softnpu.emulator.compiler.weights_separation import is_weight
from tests.fuzz.models import openvino_faults as faults
from tests.fuzz.models.case import Case
from tests.fuzz.models.records import Answer, Job, Refusal, Step, Value
from tests.fuzz.models.running import Runner, fill, value_of, values_of
from tests.fuzz.models.state_inputs import Outside
from tests.fuzz.models.values import name_of

CPU = {
    "INFERENCE_PRECISION_HINT": "f32",
    "PERFORMANCE_HINT": "LATENCY",
    "EXECUTION_MODE_HINT": "ACCURACY",
    **faults.IN_F32,
}
EVIDENCE = ("again", "alike", "bound", "written", "streams", "one request", "performance")
_MOST_STREAMS = 4
"""The number of inferences that softnpu computes concurrently (docs/plugin.md, PERFORMANCE_HINT)."""
_core: ov.Core | None = None


def _compile(model: Any, more: dict[str, str] | None = None) -> Any:
    global _core
    if _core is None:
        _core = ov.Core()
    if _writes_constants(model):
        model = _own(model)
    return _core.compile_model(model, "CPU", {**CPU, **(more or {})})


def _writes_constants(model: Any) -> bool:
    """Return whether OpenVINO may write into a model's constants, or values folded from them."""
    return isinstance(model, ov.Model) and faults.computes_constants(model)


def _own(model: ov.Model) -> ov.Model:
    """Return the model with its own copy of the constants."""
    own = model.clone()
    for part in [own, *all_bodies(own)]:
        for node in part.get_ops():
            if node.get_type_name() == "Constant" and node.get_element_type() != ov.Type.string:
                name = node.get_friendly_name()
                constant = ov.op.Constant(_copy(node.tensor_view), shared_memory=True)
                constant.set_friendly_name(name)
                node.output(0).replace(constant.output(0))
    return own


def refuse(stage: str, error: Exception) -> Refusal:
    """Return OpenVINO's error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Exception from ")] or lines
    return Refusal(stage, type(error).__name__, " | ".join(lines)[-600:], isinstance(error, RuntimeError))


def run(case: Case, job: Job) -> Answer:
    """Return the CPU device's answer in the form `job.way.run`: a key of `_FORMS`."""
    try:
        return _FORMS[job.way.run](case, job)
    except RuntimeError as error:
        return Answer(refuse("compile", error))


def _steps(case: Case, model: Any, more: dict[str, str] | None = None, zeros: bool = False) -> Answer:
    """Run every step on a new request; states carry over.

    A compiled model that has failed once may then refuse valid input: it is recompiled. So is one whose
    constants may have been written.
    """
    compiled = _compile(model, more)
    once = _writes_constants(model) and not case.stateful
    steps: list[Step] = []
    before: dict[str, ov.Tensor] = {}
    request = None
    for step in case.steps:
        if request is None or not case.stateful or case.dynamic:
            compiled = _compile(model, more) if once and steps else compiled
            request = compiled.create_infer_request()
            _hand_on(request, before, zeros)
        try:
            fill(request, step)
            request.infer()
            steps.append(values_of(request, len(case.model.outputs)))
        except RuntimeError as error:
            steps.append(refuse("infer", error))
            compiled = _compile(model, more)
        else:
            if case.stateful and case.dynamic:
                before = {state.name: _copy(state.state) for state in request.query_state()}
    return Answer(rounds=[steps])


def _hand_on(request: Any, before: dict[str, ov.Tensor], zeros: bool) -> None:
    for state in request.query_state():
        if state.name in before:
            state.state = before[state.name]
        elif zeros:
            state.state = ov.Tensor(state.state.element_type, state.state.shape)


def _copy(tensor: ov.Tensor) -> ov.Tensor:
    made = ov.Tensor(tensor.element_type, tensor.shape)
    if made.byte_size:
        tensor.copy_to(made)
    return made


def _right(case: Case, _: Job) -> Answer:
    return _steps(case, case.model)


def _zeros(case: Case, _: Job) -> Answer:
    """Start states as zeros, as OpenVINO's own NPU plugin does."""
    return _steps(case, case.model, zeros=True)


def _outside(case: Case, job: Job) -> Answer:
    """Run with states as inputs and outputs; `job.notes`: `zeros` to start them, `unfused` for that form."""
    outside = Outside(case, zeros=bool(job.notes.get("zeros")))
    more = faults.UNFUSED if job.notes.get("unfused") else {}
    if more:
        faults.make_loadable(outside.model)
    try:
        found = outside.run(case, partial(_compile, more=more), _run_once)
    except RuntimeError as error:
        return Answer(refuse("compile", error))
    steps: list[Step] = [
        refuse("infer", step) if isinstance(step, RuntimeError) else [value_of(one) for one in step]
        for step in found
    ]
    return Answer(rounds=[steps])


def _run_once(compiled: Any, inputs: list[ov.Tensor]) -> list[ov.Tensor]:
    request = compiled.create_infer_request()
    fill(request, inputs)
    request.infer()
    return [_copy(request.get_output_tensor(index)) for index in range(len(compiled.outputs))]


def _streams(case: Case, _: Job) -> Answer:
    return _steps(case, case.model, {"NUM_STREAMS": str(min(_MOST_STREAMS, len(os.sched_getaffinity(0))))})


def _performance(case: Case, _: Job) -> Answer:
    return _steps(case, case.model, {"EXECUTION_MODE_HINT": "PERFORMANCE"})


def _unfused(case: Case, _: Job) -> Answer:
    """Run without subgraphs, which may be wrong in 8 bits (docs/fidelity.md, numbers)."""
    model = case.model.clone()
    faults.make_loadable(model)
    return _steps(case, model, faults.UNFUSED)


def _folded(case: Case, _: Job) -> Answer:
    """Run with what depends on constants alone computed before (docs/fidelity.md, numbers)."""
    model = _own(case.model)
    faults.fold(model, partial(ov.Core().compile_model, device_name="CPU", config=CPU))
    return _steps(case, model)


def _inner(case: Case, _: Job) -> Answer:
    """Run with the inner dimensions of recurrent layers as their weights have them."""
    model = case.model.clone()
    faults.state_inner_dimensions(model)
    return _steps(case, model)


def _written(case: Case, job: Job) -> Answer:
    """Run the model after writing and rereading it."""
    path = Path(job.folder, "written.xml")
    ov.serialize(case.model, path)
    return _steps(case, path)


def _alike(case: Case, job: Job) -> Answer:
    """Run in the same way as softnpu: is OpenVINO alone right in that use?"""
    how = {"remote": "set", "reset": "many", "pair": "many"}.get(job.notes["run"], job.notes["run"])
    return Answer(rounds=Runner(case, _compile(case.model), job, refuse, ov.AsyncInferQueue).run(how))


def _one_request(case: Case, job: Job) -> Answer:
    return Answer(rounds=Runner(case, _compile(case.model), job, refuse, ov.AsyncInferQueue).run("one"))


def _separated(case: Case, _: Job) -> Answer:
    """Run with the weights as inputs, and states that begin as zeros."""
    model = case.model.clone()
    added, held = [], []
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Constant" and is_weight(node):
            added.append(ov.op.Parameter(node.get_element_type(), node.get_output_partial_shape(0)))
            held.append(_copy(node.tensor_view))
            node.output(0).replace(added[-1].output(0))
    model.add_parameters(added)
    return _steps(replace(case, steps=[[*step, *held] for step in case.steps]), model, zeros=True)


def _bound(case: Case, job: Job) -> Answer:
    """Run with user tensors for everything, as the engine does."""
    return Answer(rounds=Runner(case, _compile(case.model), job, refuse, ov.AsyncInferQueue).run("set"))


def _split(case: Case, job: Job) -> Answer:
    """Run a batch sample by sample. `job.notes`: its axis, and the length of one sample there."""
    inputs: list[tuple[int, int]] = job.notes["inputs"]
    outputs: list[tuple[int, int]] = job.notes["outputs"]
    model = case.model.clone()
    shapes = {}
    for index, (axis, per_sample) in enumerate(inputs):
        shape = [str(dimension) for dimension in model.inputs[index].partial_shape]
        if axis >= 0:
            shape[axis] = str(per_sample)
        shapes[index] = ov.PartialShape("[" + ",".join(shape) + "]")
    model.reshape(shapes)
    compiled = _compile(model)
    steps: list[Step] = []
    for step in case.steps:
        at = next(index for index, (axis, _) in enumerate(inputs) if axis >= 0)
        axis, per_sample = inputs[at]
        samples = list(step[at].shape)[axis] // per_sample
        parts: list[list[ov.Tensor]] = []
        try:
            for sample in range(samples):
                request = compiled.create_infer_request()
                fill(request, [_part(one, *where, sample) for one, where in zip(step, inputs, strict=True)])
                request.infer()
                parts.append([_copy(request.get_output_tensor(index)) for index in range(len(model.outputs))])
            steps.append(
                [_joined([part[index] for part in parts], axis) for index, (axis, _) in enumerate(outputs)]
            )
        except (RuntimeError, ValueError) as error:
            steps.append(refuse("infer", error))
            compiled = _compile(model)
    return Answer(rounds=[steps])


def _part(one: ov.Tensor, axis: int, per_sample: int, sample: int) -> ov.Tensor:
    if axis < 0:
        return one
    data = np.asarray(one.data).take(range(sample * per_sample, (sample + 1) * per_sample), axis)
    made = ov.Tensor(one.element_type, ov.Shape(list(data.shape)))
    if made.size:
        np.asarray(made.data)[...] = data
    return made


def _joined(parts: list[ov.Tensor], axis: int) -> Value:
    if axis < 0:
        return value_of(parts[0])
    joined = np.concatenate([np.asarray(part.data) for part in parts], axis)
    return Value(name_of(parts[0].element_type), joined.shape, np.ascontiguousarray(joined).tobytes())


_FORMS: dict[str, Callable[[Case, Job], Answer]] = {
    "right": _right,
    "again": _right,
    "zeros": _zeros,
    "outside": _outside,
    "split": _split,
    "separated": _separated,
    "alike": _alike,
    "bound": _bound,
    "written": _written,
    "unfused": _unfused,
    "folded": _folded,
    "inner": _inner,
    "streams": _streams,
    "one request": _one_request,
    "performance": _performance,
}

__all__ = ["CPU", "EVIDENCE", "refuse", "run"]
