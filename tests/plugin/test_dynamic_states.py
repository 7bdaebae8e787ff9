"""States that grow: attention caches, compared with OpenVINO's CPU device after every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset6, opset13
from openvino.op.util import Variable, VariableInfo

from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.plugin import AsyncInferQueue, Core, InferCancelled, InferError, InferRequest, InputError
from softnpu.plugin.requests import dynamic_states
from tests.conftest import StartDaemon
from tests.native.language_model import VOCABULARY, language_model
from tests.support import growing, stateful
from tests.support.daemon import Daemon
from tests.support.stateful import held, only
from tests.support.waiting import wait_until

Steps = Sequence[Sequence[ov.Tensor]]
LENGTHS = (5, 1, 1, 3, 1, 700, 1, 1, 900, 1, 1)
"""Beyond the first memory of a state, and beyond the next."""


def lengths(model: ov.Model) -> Steps:
    """Inputs of the given numbers of rows or positions for a model of `growing`."""
    if len(model.inputs) == 2:
        return growing.steps(LENGTHS)
    random = np.random.default_rng(2)
    rank = len(model.input(0).partial_shape)
    front, width = ((2,), growing.SIZE) if rank == 3 else ((), 3)
    return [[ov.Tensor(random.random((*front, rows, width), np.float32))] for rows in LENGTHS]


def tokens(count: int, past: int, batch: int, seed: int, beams: Sequence[int]) -> list[ov.Tensor]:
    """Inputs of `language_model`: attention mask, beams, tokens and positions, ordered by name."""
    ids = np.random.default_rng(seed).integers(0, VOCABULARY, (batch, count))
    named = {
        "attention_mask": np.ones((batch, past + count), np.int64),
        "beam_idx": np.array(beams, np.int32),
        "input_ids": ids.astype(np.int64),
        "position_ids": np.tile(np.arange(past, past + count, dtype=np.int64), (batch, 1)),
    }
    return [ov.Tensor(named[name]) for name in ("input_ids", "attention_mask", "position_ids", "beam_idx")]


@pytest.fixture
def summing(shared_core: Core) -> InferRequest:
    return shared_core.compile_model(growing.history()).create_infer_request()


def rows(count: int, value: float = 1) -> list[np.ndarray[Any, Any]]:
    return [np.full((count, 3), value, np.float32)]


# ---------------------------------------------------------------- numbers

MODELS: dict[str, Callable[[], ov.Model]] = {
    "fused attention": growing.attention,
    "attention": lambda: growing.attention(fused=False),
    "with a bound": lambda: growing.attention(bound=4096),
    "one batch": lambda: growing.attention(reorders=False, batch=2),
    "rows": growing.history,
    "rows that begin with two": lambda: growing.history(initial=np.eye(2, 3, dtype=np.float32)),
    "computed from an input and kept": growing.encoded,
    "one that keeps its shape beside": growing.beside_a_static_one,
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_results_equal_the_cpu_device_after_every_step(
    shared_core: Core, make: Callable[[], ov.Model]
) -> None:
    model = make()
    steps = lengths(model)
    resets = {4: "", 7: only_name(model)}
    request = shared_core.compile_model(model).create_infer_request()
    assert stateful.run(request, steps, resets) == stateful.on_cpu(model, steps, resets)


def test_an_outgrown_result_advances_no_state_twice(shared_core: Core) -> None:
    grows_fast = growing.doubling(), [[ov.Tensor(np.ones((1000, 3), np.float32))]] * 5
    large_output = (
        growing.beside_a_static_one(),
        [[ov.Tensor(np.full((count, 3), count, np.float32))] for count in (2, 100_000, 1)],
    )
    of_attention = growing.attention(1), growing.steps((2, 300, 1), batch=64)
    for model, steps in (grows_fast, large_output, of_attention):
        request = shared_core.compile_model(model).create_infer_request()
        assert stateful.run(request, steps) == stateful.on_cpu(model, steps)


def only_name(model: ov.Model) -> str:
    """The name of the only variable; empty if there are several, which fit each other."""
    names = [variable.info.variable_id for variable in model.get_variables()]
    return names[0] if len(names) == 1 else ""


def test_a_language_model_with_beams(shared_core: Core) -> None:
    model = language_model()
    counts = [9, 1, 1, 1, 4, 1, 1]
    pasts = np.cumsum([0, *counts])
    beams = [(0, 1, 2), (2, 0, 0), (1, 1, 0)]
    steps = [tokens(n, int(pasts[at]), 3, at, beams[at % 3]) for at, n in enumerate(counts)]
    request = shared_core.compile_model(model).create_infer_request()
    assert stateful.run(request, steps) == stateful.on_cpu(model, steps)


@pytest.mark.parametrize(
    "hint",
    [{"PERFORMANCE_HINT": "THROUGHPUT"}, {"EXECUTION_MODE_HINT": "PERFORMANCE"}],
    ids=["throughput", "performance"],
)
def test_with_other_hints(shared_core: Core, hint: dict[str, str]) -> None:
    model, steps = growing.attention(), growing.steps((4, 1, 1, 2, 1))
    found = stateful.run(shared_core.compile_model(model, "NPU", hint).create_infer_request(), steps)
    config = stateful.CPU | hint | {"KV_CACHE_PRECISION": "f32"}
    assert found == stateful.run(ov.Core().compile_model(model, "CPU", config).create_infer_request(), steps)


# ---------------------------------------------------------------- query, set, reset


def test_a_state_is_a_view_of_its_current_shape(summing: InferRequest) -> None:
    state = only(summing)
    assert (state.name, list(state.state.shape), repr(state)) == (
        "rows",
        [0, 3],
        "<VariableState: 'rows' f32[?,3]>",
    )
    summing.infer(rows(2))
    view = state.state
    assert list(view.shape) == [2, 3]
    view.data[:] = 10  # writing into it changes the state
    assert list(summing.infer(rows(1))["y"]) == [21, 21, 21]
    state.reset()
    assert list(state.state.shape) == [0, 3]
    assert list(summing.infer(rows(1))["y"]) == [1, 1, 1]


def test_a_state_is_set_in_any_shape_that_fits(shared_core: Core) -> None:
    model, steps = growing.attention(), growing.steps((6, 1, 1, 1))
    compiled = shared_core.compile_model(model)
    first, second = compiled.create_infer_request(), compiled.create_infer_request()
    expected = stateful.run(first, steps)
    first.reset_state()
    stateful.run(first, steps[:2])
    second.infer(growing.steps((600,), seed=5)[0])
    for ours, theirs in zip(second.query_state(), first.query_state(), strict=True):
        ours.state = theirs.state
    assert stateful.run(second, steps[2:]) == expected[2:]
    assert stateful.run(first, steps[2:]) == expected[2:]


@pytest.mark.parametrize(
    "value",
    [
        ov.Tensor(np.ones((2, 4), np.float32)),
        ov.Tensor(np.ones(3, np.float32)),
        ov.Tensor(np.ones((2, 3))),
        "rows",
    ],
    ids=["width", "rank", "type", "text"],
)
def test_a_misfitting_value_is_refused_and_changes_nothing(summing: InferRequest, value: Any) -> None:
    summing.infer(rows(2))
    with pytest.raises(InputError, match=r"'rows'.*f32\[\?,3\]"):
        only(summing).state = value
    assert list(summing.infer(rows(1))["y"]) == [3, 3, 3]


def _other_length(state: Any) -> None:
    state.state = ov.Tensor(np.zeros((2, growing.HEADS, 4, growing.WIDTH), np.float32))


@pytest.mark.parametrize("change", [_other_length, lambda state: state.reset()], ids=["set", "reset"])
@pytest.mark.parametrize("which", [0, 1], ids=["keys", "values"])
def test_states_of_one_attention_cannot_be_changed_alone(
    shared_core: Core, change: Callable[[Any], None], which: int
) -> None:
    model, steps = growing.attention(), growing.steps((6, 1, 1, 1))
    request = shared_core.compile_model(model).create_infer_request()
    expected = stateful.on_cpu(model, steps)
    assert stateful.run(request, steps[:2]) == expected[:2]
    saved = {state.name: state.state.data.copy() for state in request.query_state()}
    change(request.query_state()[which])
    before = [state.state.data.tobytes() for state in request.query_state()]
    with pytest.raises(InferError, match=r"'past\.0\.key'.*'past\.0\.value'.*both states together"):
        request.infer(list(steps[2]))
    assert [state.state.data.tobytes() for state in request.query_state()] == before
    for state in request.query_state():
        state.state = ov.Tensor(saved[state.name])
    assert stateful.run(request, steps[2:]) == expected[2:]
    request.reset_state()
    assert stateful.run(request, steps) == expected


def _played(request: Any, seed: int, count: int) -> list[list[bytes]]:
    """Results of random steps, resets, and states saved and set again."""
    dice = np.random.default_rng(seed)
    saved: list[dict[str, Any]] = []
    found: list[list[bytes]] = []
    has_begun = False  # the CPU device refuses empty caches
    for number in range(count):
        what = dice.integers(0, 10)
        if what == 0:
            request.reset_state()
            has_begun = False
        elif what == 1 and has_begun:
            saved.append({state.name: state.state.data.copy() for state in request.query_state()})
        elif what == 2 and saved:
            values = saved[dice.integers(0, len(saved))]
            for state in request.query_state():
                state.state = ov.Tensor(values[state.name])
            has_begun = True
        else:
            has_begun = True
            length = int(dice.choice([1, 1, 1, 2, 7, 250]))
            found += stateful.run(request, growing.steps((length,), seed=number))
    return found


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))])
def test_random_sequences(shared_core: Core, seed: int) -> None:
    model = growing.attention(1 + seed % 2, fused=seed % 3 != 0)
    ours = shared_core.compile_model(model).create_infer_request()
    theirs = ov.Core().compile_model(model, "CPU", stateful.CPU).create_infer_request()
    assert _played(ours, seed, 60) == _played(theirs, seed, 60)


# ---------------------------------------------------------------- failures


def test_a_failed_or_cancelled_inference_leaves_the_state_unchanged(shared_core: Core) -> None:
    request = shared_core.compile_model(growing.attention(1, fused=False)).create_infer_request()
    first, second = growing.steps((3, 1))
    request.infer(first)

    def now() -> list[bytes]:
        return [state.state.data.tobytes() for state in request.query_state()]

    before = now()
    with pytest.raises(InferError, match="Concat"):
        request.infer([second[0], ov.Tensor(np.zeros(3, np.int32))])  # three beams, two samples
    assert now() == before
    with held(request):
        request.start_async(second)
        with pytest.raises(InferError, match="busy"):
            request.reset_state()
        request.cancel()
    with pytest.raises(InferCancelled):
        request.wait()
    assert now() == before
    twin = shared_core.compile_model(growing.attention(1, fused=False)).create_infer_request()
    assert stateful.run(twin, [first, second])[1:] == stateful.run(request, [second])


@pytest.mark.parametrize("point", ["engine.running", "engine.ended"])
def test_states_survive_an_engine_death_and_advance_once(start_daemon: StartDaemon, point: str) -> None:
    daemon = start_daemon(failpoints=f"{point}=kill:1:2")
    core = Core(daemon.socket)
    model, steps = growing.attention(1), growing.steps((5, 1, 2, 600, 1, 1))
    found = stateful.run(core.compile_model(model).create_infer_request(), steps)
    assert daemon.engine().restarts == 1
    assert found == stateful.on_cpu(model, steps)
    core.unload_plugin()


# ---------------------------------------------------------------- memory


def test_memory_grows_by_doubling_and_is_released(core: Core, daemon: Daemon) -> None:
    compiled = core.compile_model(growing.history())

    def grown() -> tuple[InferRequest, list[int]]:
        request = compiled.create_infer_request()
        used = []
        for _ in range(40):
            request.infer(rows(1000))
            used.append(daemon.memory_used())
        return request, used

    request, used = grown()
    assert len(set(used)) < 12  # twelve kB a step, and memory for 480
    assert used[-1] - used[0] < 4 * 40 * 12_000
    del request
    again = grown()
    # outgrown memory, and that of the first request, is returned once the engine has released it
    wait_until(lambda: daemon.memory_used() <= used[-1])
    del again


def test_a_state_that_outgrows_the_session_memory_stays_unchanged(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon(session_memory=16 << 20)
    core = Core(daemon.socket)
    request = core.compile_model(growing.doubling()).create_infer_request()
    request.infer(rows(1000))
    lengths_before: list[int] = []

    def grow_for_ever() -> None:
        while True:
            lengths_before.append(only(request).state.shape[0])
            request.infer(rows(1))

    with pytest.raises(InferError, match="memory"):
        grow_for_ever()
    assert only(request).state.shape[0] == lengths_before[-1]
    request.reset_state()
    assert list(request.infer(rows(2))["y"]) == [2, 2, 2]
    core.unload_plugin()


def test_a_size_guess_beyond_the_memory_is_dropped(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the guess for two caches of 700 positions would be 11 MB each
    daemon = start_daemon(session_memory=8 << 20)
    core = Core(daemon.socket)
    monkeypatch.setattr(dynamic_states, "GUESSED_BYTES", 1 << 30)
    model = growing.history()
    request = core.compile_model(model).create_infer_request()
    monkeypatch.setattr(type(request._recording.inputs[0]), "positions", 1 << 20)
    assert stateful.run(request, lengths(model)) == stateful.on_cpu(model, lengths(model))
    core.unload_plugin()


def test_only_an_unexpected_size_is_computed_twice(core: Core, daemon: Daemon) -> None:
    def inferences(model: ov.Model, steps: Steps) -> int:
        request = core.compile_model(model).create_infer_request()
        before = daemon.engine().inferences
        for step in steps:
            request.infer(list(step))
        core.unload_plugin()
        return daemon.engine().inferences - before

    model = growing.attention(1)
    assert inferences(model, lengths(model)) == len(LENGTHS)


# ---------------------------------------------------------------- with everything else


def test_requests_have_states_of_their_own(shared_core: Core) -> None:
    queue = AsyncInferQueue(shared_core.compile_model(growing.history()), 3)
    for _ in range(30):
        queue.start_async(rows(2))
    queue.wait_all()
    lengths_now = [only(request).state.shape[0] for request in queue]
    assert sum(lengths_now) == 60
    assert [request.get_output_tensor().data[0] for request in queue] == lengths_now


def test_two_clients_taking_turns(shared_core: Core, shared_daemon: Daemon) -> None:
    model, other = growing.attention(), Core(shared_daemon.socket)
    requests = [core.compile_model(model).create_infer_request() for core in (shared_core, other)]
    steps = [growing.steps((4, 1, 600, 1, 1), seed=seed) for seed in range(2)]
    found: list[list[list[bytes]]] = [[], []]
    for turn in zip(*steps, strict=True):
        for number, step in enumerate(turn):
            found[number] += stateful.run(requests[number], [step])
    assert found == [stateful.on_cpu(model, each) for each in steps]
    other.unload_plugin()


def test_exported_imported_and_out_of_a_cache(
    core: Core, private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = private_dir / "attention.xml"
    ov.save_model(growing.attention(), path, compress_to_fp16=False)
    steps = growing.steps((3, 1, 600, 1))
    expected = stateful.on_cpu(path, steps)
    compiled = core.compile_model(path)
    exported = compiled.export_model()
    assert exported is not None
    again = core.import_model(exported.getvalue())
    assert [port.any_name for port in again.inputs] == ["x", "beam_idx"]
    monkeypatch.setenv(ENV_CACHE_DIR, str(private_dir / "driver"))
    by_cache_dir = {"CACHE_DIR": str(private_dir / "plugin")}
    models = [again, *(core.compile_model(path) for _ in range(2))]
    models += [core.compile_model(path, "NPU", by_cache_dir) for _ in range(2)]
    assert [model.get_property("LOADED_FROM_CACHE") for model in models[1:]] == [False, True, False, True]
    for model in models:
        assert stateful.run(model.create_infer_request(), steps) == expected


def test_with_profiles_and_static_inputs(shared_core: Core) -> None:
    model, shapes = growing.attention(reorders=False), {"x": [2, 1, growing.SIZE]}
    compiled = shared_core.compile_model(model, "NPU", {"PERF_COUNT": "YES"}, shapes=shapes)
    request = compiled.create_infer_request()
    steps = [[ov.Tensor(np.full((2, 1, growing.SIZE), step, np.float32))] for step in range(4)]
    model.reshape({"x": shapes["x"]})
    assert stateful.run(request, steps) == stateful.on_cpu(model, steps)
    assert request.profiling_info


@pytest.mark.parametrize("rows", [ov.Dimension(1, 4), ov.Dimension(2, -1)])
def test_a_state_that_is_never_empty_begins_with_its_initial_value(
    shared_core: Core, reference: ov.Core, rows: ov.Dimension
) -> None:
    data = opset13.parameter(ov.PartialShape([rows, 3]), np.float32)
    state = VariableInfo()
    state.data_type, state.variable_id = ov.Type.f32, "state"
    state.data_shape = ov.PartialShape([rows, 3])
    variable = Variable(state)
    begin = opset13.broadcast(opset13.constant(np.float32(0)), opset13.shape_of(data))
    summed = opset13.tanh(opset13.add(opset6.read_value(begin, variable), data))
    model = ov.Model([opset13.result(summed)], [opset6.assign(summed, variable)], [data], "bounded")
    ones = np.ones((2, 3), np.float32)
    request = shared_core.compile_model(model, "NPU").create_infer_request()
    expected = reference.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    other = expected.create_infer_request()
    for _ in range(3):
        np.testing.assert_array_equal(request.infer([ones])[0], other.infer([ones])[0])


@pytest.mark.parametrize("kind", ["f32", "f16", "i32"])
def test_a_state_that_is_an_output_as_it_is_stays_its_own(shared_core: Core, kind: str) -> None:
    """Of 16 bits OpenVINO mixes it up with that of another request."""
    data = opset13.parameter(ov.PartialShape([-1, -1, 3]), np.float32)
    total = opset13.reduce_sum(data, opset13.constant([1]), False)
    value, assigned = growing.accumulated("sum", getattr(ov.Type, kind), -1, total, 2)
    model = ov.Model([opset13.result(value), opset13.result(data)], [assigned], [data], "sum")
    compiled = shared_core.compile_model(model, "NPU", {"NPU_BATCH_MODE": "COMPILER"})
    requests = [compiled.create_infer_request() for _ in range(2)]
    expected = [np.full((4, 3), 2, np.float32) for _ in range(2)]
    for which, rows in ((1, 1), (1, 1), (0, 1), (1, 2), (1, 3), (0, 4), (1, 6), (0, 1)):
        given = np.full((4, rows, 3), which + 1, np.float32)
        found = requests[which].infer([given])[0]
        np.testing.assert_array_equal(found.astype(np.float32), expected[which])
        expected[which] = expected[which] + rows * (which + 1)


def test_a_state_that_begins_again_reads_as_zeros(shared_core: Core) -> None:
    """Also one of a static shape beside one that grows, and what is handed to another request."""
    data = opset13.parameter(ov.PartialShape([-1, 3]), np.float32)
    total = opset13.reduce_sum(data, opset13.constant([0]), True)
    grown, first = growing.accumulated("open", ov.Type.f32, -1, data, 0)
    value, second = growing.accumulated("static", ov.Type.f32, 1, total, 5)
    results = [opset13.result(grown), opset13.result(value)]
    compiled = shared_core.compile_model(ov.Model(results, [first, second], [data], "two"), "NPU")
    one, other = (compiled.create_infer_request() for _ in range(2))
    for request in (one, other, one):
        request.infer(rows(2))
    one.reset_state()
    values = {state.name: np.array(state.state.data) for state in one.query_state()}
    assert values["open"].shape == (0, 3)
    np.testing.assert_array_equal(values["static"], np.zeros((1, 3), np.float32))
    for state in other.query_state():
        if state.name == "static":
            state.state = ov.Tensor(values["static"])
    np.testing.assert_array_equal(other.infer(rows(2))[1], np.zeros((1, 3)))
    np.testing.assert_array_equal(one.infer(rows(2))[1], np.full((1, 3), 5))
