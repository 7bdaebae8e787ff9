"""Images for latency whose inferences wait for each other: they run side by side, on a copy with streams."""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from softnpu.driver import CommandQueue, Context, Driver, Fence
from softnpu.emulator.openvino import copies, streamed_copy
from softnpu.emulator.openvino import image as images
from softnpu.emulator.openvino.binding import Binding
from softnpu.emulator.openvino.copies import CopyMaker, expected_of, memory_of, outputs_in
from softnpu.emulator.openvino.image import LoadedImage
from tests.conftest import StartContext
from tests.support import loaded_images
from tests.support.daemon import Daemon
from tests.support.models import Array, on_cpu, random_square, write_chain
from tests.support.waiting import wait_until
from tests.support.work import LONG, Loaded, check_works, execute, run, same

_SIZE = 256
_HAS_COPY = "inferences at once while several wait"
pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has one stream")


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
    """Return a daemon whose engine has a copy of the model, because its inferences waited for each other."""
    daemon, context = start_context()
    loaded = _several(context, xml, 4)

    def has_copy() -> bool:
        _all_at_once(context, loaded)
        return daemon.log.count(_HAS_COPY) == 1

    wait_until(has_copy, what="a copy with streams")
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


def _ask(image: LoadedImage, value: float = 0.5) -> None:
    views = memory_of(image, [])
    for view, argument in zip(views, image.meta.inputs, strict=False):
        view.view(np.float32 if argument.element_type == "f32" else np.int32)[:] = value
    streamed_copy.ask(loaded_images.MakerAtOnce(), image, views)


def test_an_image_gets_a_copy_with_as_many_streams_as_cores(context: Context, xml: Path) -> None:
    image = loaded_images.compiled(context, xml)
    _ask(image)
    assert image.streamed is not None
    assert image.streams == 1
    assert image.streamed.streams > 1


def test_a_copy_that_computes_other_bits_is_not_used(
    context: Context,
    private_dir: Path,
    xml: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    image = loaded_images.compiled(context, xml)
    wrong = loaded_images.compiled(context, write_chain(private_dir, _SIZE, 3, "other")).with_streams()
    with monkeypatch.context() as patched:
        patched.setattr(LoadedImage, "with_streams", lambda _: wrong)
        patched.setattr(copies, "layers_of", lambda _: Counter())
        _ask(image)
    assert image.streamed is None
    assert "with other threads it computes other bits" in caplog.text


def test_a_large_image_gets_none(context: Context, xml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MOST_COPIED", -1)
    image = loaded_images.compiled(context, xml)
    _ask(image)
    assert image.streamed is None


def _save(folder: Path, output: Any, *inputs: Any) -> Path:
    path = folder / "saved.xml"
    ov.serialize(ov.Model([output], list(inputs), "saved"), path)
    return path


def test_zeros_do_not_verify_a_copy(
    context: Context, private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO sums up a group in another order with several streams, which no sum of zeros shows."""
    monkeypatch.setattr(copies, "keeps_order", lambda *_: True)
    x = ops.parameter([1, 16, 128, 128], ov.Type.f32, name="x")
    ones = ops.constant(np.ones(16, np.float32))
    image = loaded_images.compiled(
        context, _save(private_dir, ops.group_normalization(x, ones, ones, 2, 1e-5), x)
    )
    _ask(image, 0.0)
    if (copy := image.streamed) is not None:  # on another processor
        views = memory_of(image, [np.random.default_rng(9).random(x.shape, np.float32).tobytes()])
        Binding(copy, views, lambda _: None).run(lambda: False)
        assert outputs_in(image, views) == expected_of(image, [views[0].tobytes()])


@pytest.mark.parametrize("kind", ["norm", "group norm", "deconvolution", "random", "branch", "other kernels"])
def test_an_image_whose_bits_may_depend_on_threads_or_on_time_gets_none(
    context: Context, private_dir: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few outputs, rounded or in a range, do not show a sum in another order."""
    x = ops.parameter([1, 16, 32, 32], ov.Type.f32, name="x")
    weights, ones = ops.constant(np.ones((16, 16, 3, 3), np.float32)), ops.constant(np.ones(16, np.float32))
    one, pads = [1, 1], [1, 1]
    made = ops.convolution(x, weights, one, pads, pads, one)
    if kind == "norm":
        made = ops.mvn(made, np.array([2, 3]), True, 1e-5, "inside_sqrt")
    elif kind == "group norm":
        made = ops.group_normalization(made, ones, ones, 2, 1e-5)
    elif kind == "deconvolution":
        made = ops.convolution_backprop_data(x, weights, one, pads_begin=pads, pads_end=pads, dilations=one)
    elif kind == "random":
        bounds = np.zeros(1, np.float32), np.ones(1, np.float32)
        made = ops.add(made, ops.random_uniform(np.array([16, 32, 32]), *bounds, "f32", 7, 9))
    elif kind == "branch":
        made = loaded_images.branch(made)
    else:
        patched = iter([Counter({("Convolution", "one"): 1}), Counter({("Convolution", "two"): 1})])
        monkeypatch.setattr(copies, "layers_of", lambda _: next(patched))
    image = loaded_images.compiled(context, _save(private_dir, made, x))
    _ask(image)
    assert image.streamed is None


@pytest.mark.parametrize("kind", ["integers", "constant"])
def test_an_image_whose_outputs_hide_other_bits_gets_none(
    context: Context, private_dir: Path, kind: str
) -> None:
    x = ops.parameter([64, 64], ov.Type.f32, name="x")
    sums = ops.reduce_sum(ops.matmul(x, x, False, False), np.array([1]), keep_dims=True)
    hiding = ops.convert(sums, "i32") if kind == "integers" else ops.relu(ops.negative(ops.abs(sums)))
    image = loaded_images.compiled(context, _save(private_dir, hiding, x))
    _ask(image)
    assert image.streamed is None


def test_an_image_with_large_arguments_gets_none(context: Context, private_dir: Path) -> None:
    x = ops.parameter([4 << 20], ov.Type.f32, name="x")
    image = loaded_images.compiled(context, _save(private_dir, ops.relu(x), x))
    _ask(image)
    assert image.streamed is None


def test_a_copy_that_fails_keeps_no_other_from_being_made(context: Context, xml: Path) -> None:
    image, maker, made = loaded_images.compiled(context, xml), CopyMaker(), threading.Event()

    def fail(_: object) -> None:
        raise MemoryError

    maker.ask(fail, image, [])
    maker.ask(lambda _: made.set(), image, [])
    assert made.wait(60)
