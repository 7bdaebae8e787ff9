"""Images for latency whose inferences wait for each other: they run side by side, on a copy with streams."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from softnpu.driver import Context, GraphSource
from softnpu.emulator.openvino import image as images
from softnpu.emulator.openvino import streamed_copy
from softnpu.emulator.openvino.copies import CopyMaker
from softnpu.emulator.openvino.image import LoadedImage
from tests.conftest import StartContext
from tests.support import loaded_images
from tests.support.daemon import Daemon
from tests.support.models import Array, on_cpu, write_chain
from tests.support.waiting import wait_until
from tests.support.work import LONG, Loaded, execute, run, same

_SIZE = 256
_HAS_COPY = "inferences at once while several wait"
pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has one stream")


@pytest.fixture
def xml(private_dir: Path) -> Path:
    """Return a network that takes some 10 ms."""
    return write_chain(private_dir, _SIZE, 10)


def _matrix(seed: int) -> Array:
    return np.random.default_rng(seed).random((_SIZE, _SIZE), dtype=np.float32)


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


class _AtOnce(CopyMaker):
    """Makes copies in the thread that asks."""

    def ask(self, make: Callable[[], None]) -> None:
        make()


def _loaded(context: Context, xml: Path) -> LoadedImage:
    with GraphSource.from_ir(xml) as source, context.create_graph(source) as graph:
        return loaded_images.load(bytes(graph.get_native_binary()))


def _ask(image: LoadedImage) -> None:
    inputs = [_matrix(0).tobytes() for _ in image.meta.inputs]
    streamed_copy.ask(_AtOnce(), image, inputs)


def test_an_image_gets_a_copy_with_as_many_streams_as_cores(context: Context, xml: Path) -> None:
    image = _loaded(context, xml)
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
    image, other = _loaded(context, xml), _loaded(context, write_chain(private_dir, _SIZE, 3, "other"))
    wrong = other.with_streams()
    with monkeypatch.context() as patched:
        patched.setattr(LoadedImage, "with_streams", lambda _: wrong)
        _ask(image)
    assert image.streamed is None
    assert "with streams it computes other bits" in caplog.text


def test_a_large_image_gets_none(context: Context, xml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MOST_COPIED", -1)
    image = _loaded(context, xml)
    _ask(image)
    assert image.streamed is None
