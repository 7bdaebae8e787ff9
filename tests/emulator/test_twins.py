"""Images for latency whose inferences wait for each other: they run side by side, on twins."""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from softnpu.driver import CommandQueue, Context, Driver, Fence
from softnpu.emulator.openvino import twin_maker
from softnpu.emulator.openvino.copies import CopyMaker, expected_of, memory_of
from softnpu.emulator.openvino.image import LoadedImage
from softnpu.emulator.openvino.twins import Twins
from tests.conftest import StartContext
from tests.support import loaded_images
from tests.support.daemon import Daemon
from tests.support.models import Array, on_cpu, random_square, write_chain
from tests.support.waiting import wait_until
from tests.support.work import LONG, Loaded, check_works, execute, run, same

_SIZE = 256
_HAS_TWINS = "inferences at once while several wait"
pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core runs one at a time")


@pytest.fixture
def xml(private_dir: Path) -> Path:
    """Return a network that takes some 10 ms."""
    return write_chain(private_dir, _SIZE, 10)


def _matrix(seed: int) -> Array:
    return random_square(_SIZE, seed)


def _several(context: Context, xml: Path, number: int) -> list[Loaded]:
    loaded = [Loaded(context, xml) for _ in range(number)]
    for seed, one in enumerate(loaded):
        one.feed(_matrix(seed))
    return loaded


def _all_at_once(context: Context, loaded: list[Loaded], rounds: int = 8) -> None:
    queues = [context.create_command_queue() for _ in loaded]
    for _ in range(rounds):
        fences = [execute(queue, one.commands) for queue, one in zip(queues, loaded, strict=True)]
        assert all(fence.host_synchronize(LONG) for fence in fences)
    for queue in queues:
        queue.destroy()


@pytest.fixture
def crowded(start_context: StartContext, xml: Path) -> tuple[Daemon, Context, list[Loaded]]:
    """Return a daemon whose engine has twins of the model, because its inferences waited for each other."""
    daemon, context = start_context()
    loaded = _several(context, xml, 4)

    def has_twins() -> bool:
        _all_at_once(context, loaded)
        return daemon.log.count(_HAS_TWINS) == 1

    wait_until(has_twins, what="twins")
    return daemon, context, loaded


def _check(loaded: list[Loaded], xml: Path) -> None:
    for seed, one in enumerate(loaded):
        assert same(one.outputs, on_cpu(xml, _matrix(seed))), f"inference {seed}"
        one.memory[-1].view()[:] = 0


def test_what_waits_runs_side_by_side_with_the_same_results(
    crowded: tuple[Daemon, Context, list[Loaded]], xml: Path
) -> None:
    daemon, context, loaded = crowded
    _check(loaded, xml)
    before = daemon.engine().overlapped
    _all_at_once(context, loaded)
    _check(loaded, xml)
    wait_until(lambda: daemon.engine().overlapped > before)


def test_what_nobody_waits_for_runs_alone(crowded: tuple[Daemon, Context, list[Loaded]], xml: Path) -> None:
    daemon, context, loaded = crowded
    queue = context.create_command_queue()
    before = daemon.engine().overlapped
    for one in (*loaded, *loaded):
        run(queue, one.commands)
    _check(loaded, xml)
    assert daemon.engine().overlapped == before


def test_an_engine_that_dies_meanwhile_loses_nothing(
    crowded: tuple[Daemon, Context, list[Loaded]], xml: Path
) -> None:
    daemon, context, loaded = crowded
    _check(loaded, xml)
    queues = [context.create_command_queue() for _ in loaded]
    fences = [execute(queue, one.commands) for queue, one in zip(queues, loaded, strict=True)]
    assert fences[0].host_synchronize(LONG)
    daemon.kill_engine()
    assert all(fence.host_synchronize(LONG) for fence in fences)
    _check(loaded, xml)


def test_what_is_cancelled_writes_nothing_after_its_end(
    crowded: tuple[Daemon, Context, list[Loaded]], xml: Path
) -> None:
    _, context, loaded = crowded
    queues = [context.create_command_queue() for _ in loaded]
    fences = [execute(queue, one.commands) for queue, one in zip(queues, loaded, strict=True)]
    for queue in queues[1:]:
        queue.destroy()
    for one in loaded[1:]:
        one.memory[-1].view()[:] = 0x5A
    assert fences[0].host_synchronize(LONG)
    run(queues[0], loaded[0].commands)
    assert all(np.all(one.memory[-1].view() == 0x5A) for one in loaded[1:])
    _all_at_once(context, loaded)
    _check(loaded, xml)


def test_what_cannot_start_early_has_its_turn(
    crowded: tuple[Daemon, Context, list[Loaded]],
) -> None:
    """Inferences without end, each of which starts before its turn, do not overtake it again and again."""
    daemon, context, loaded = crowded
    queues = [context.create_command_queue() for _ in loaded]
    is_over = threading.Event()

    def flood(queue: CommandQueue, one: Loaded) -> None:
        fences: deque[Fence] = deque()
        while not is_over.is_set():
            fences.append(execute(queue, one.commands))
            if len(fences) > 2:
                assert fences.popleft().host_synchronize(LONG)
        assert all(fence.host_synchronize(LONG) for fence in fences)

    with ThreadPoolExecutor(len(loaded)) as threads, Driver.open(daemon.socket) as another:
        floods = [threads.submit(flood, *each) for each in zip(queues, loaded, strict=True)]
        try:
            before = daemon.engine().overlapped
            wait_until(lambda: daemon.engine().overlapped > before)
            with another.devices[0].create_context() as victim:
                check_works(victim)
        finally:
            is_over.set()
        assert [each.result() for each in floods] == [None] * len(floods)


def _ask(image: LoadedImage) -> None:
    views = memory_of(image, [])
    for view, argument in zip(views, image.meta.inputs, strict=False):
        view.view(np.float32 if argument.element_type == "f32" else np.int32)[:] = 0.5
    twin_maker.ask(loaded_images.MakerAtOnce(), image, views)


def test_an_image_gets_as_many_twins_as_cores_each_with_all_its_threads(context: Context, xml: Path) -> None:
    image = loaded_images.compiled(context, xml)
    _ask(image)
    assert image.twins is not None
    assert len(image.twins.images) > 1
    threads = "INFERENCE_NUM_THREADS"
    for twin in image.twins.images:
        assert twin.compiled.get_property("NUM_STREAMS") == image.streams == 1
        assert twin.compiled.get_property(threads) == image.compiled.get_property(threads)


def _save(folder: Path, output: Any, *inputs: Any) -> Path:
    path = folder / "saved.xml"
    ov.serialize(ov.Model([output], list(inputs), "saved"), path)
    return path


@pytest.mark.parametrize("kind", ["product", "group norm", "branch"])
def test_twins_divide_sums_as_their_image_does(context: Context, private_dir: Path, kind: str) -> None:
    """With other threads OpenVINO would sum up some values of these in another order."""
    generator = np.random.default_rng(3)
    if kind == "product":
        x = ops.parameter([1, 4096], ov.Type.f32, name="x")
        weights = generator.standard_normal((4096, 2)).astype(np.float32)
        made = ops.relu(ops.matmul(x, ops.constant(weights), False, False))
    else:
        x, ones = (
            ops.parameter([1, 16, 128, 128], ov.Type.f32, name="x"),
            ops.constant(np.ones(16, np.float32)),
        )
        made = ops.group_normalization(x, ones, ones, 2, 1e-5)
        made = loaded_images.branch(made) if kind == "branch" else made
    image = loaded_images.compiled(context, _save(private_dir, made, x))
    _ask(image)
    assert image.twins is not None
    for _ in range(20):
        inputs = [generator.standard_normal(list(x.shape)).astype(np.float32).tobytes()]
        expected = expected_of(image, inputs)
        assert all(expected_of(twin, inputs) == expected for twin in image.twins.images)


@pytest.mark.parametrize("kind", ["other bits", "other layers", "other threads"])
def test_what_is_another_model_is_no_twin(
    context: Context,
    private_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    def scaled(factor: float, operation: Any = ops.relu, threads: int = 0) -> LoadedImage:
        x = ops.parameter([1, 8], ov.Type.f32, name="x")
        path = _save(private_dir, operation(ops.multiply(x, np.float32(factor))), x)
        return loaded_images.compiled(context, path, {"INFERENCE_NUM_THREADS": str(threads)})

    image = scaled(2.0)
    others = {
        "other bits": partial(scaled, 3.0),
        "other layers": partial(scaled, 2.0, lambda x: ops.softmax(x, 1)),
        "other threads": partial(scaled, 2.0, threads=1),
    }
    with monkeypatch.context() as patched:
        patched.setattr(LoadedImage, "twin", lambda _: others[kind]())
        _ask(image)
    assert image.twins is None
    assert "it is another model" in caplog.text


def test_an_image_whose_numbers_depend_on_time_gets_none(context: Context, private_dir: Path) -> None:
    x = ops.parameter([16, 32], ov.Type.f32, name="x")
    bounds = np.zeros(1, np.float32), np.ones(1, np.float32)
    made = ops.add(x, ops.random_uniform(np.array([16, 32]), *bounds, "f32", 7, 9))
    image = loaded_images.compiled(context, _save(private_dir, made, x))
    _ask(image)
    assert image.twins is None


def test_a_large_image_gets_none(context: Context, xml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = loaded_images.compiled(context, xml)
    monkeypatch.setattr(twin_maker, "MOST_COPIED", 2 * image.weights_size - 1)
    _ask(image)
    assert image.twins is None


def test_each_twin_has_its_share_of_what_runs(context: Context, xml: Path) -> None:
    image = loaded_images.compiled(context, xml)
    made = Twins([image, image])
    assert [made.enter() for _ in range(4)] == [0, 1, 0, 1]
    made.leave(1)
    assert made.enter() == 1


def test_a_copy_that_fails_keeps_no_other_from_being_made(context: Context, xml: Path) -> None:
    image, maker, made = loaded_images.compiled(context, xml), CopyMaker(), threading.Event()

    def fail(_: object) -> None:
        raise MemoryError

    maker.ask(fail, image, [])
    maker.ask(lambda _: made.set(), image, [])
    assert made.wait(60)
