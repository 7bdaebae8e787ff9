"""A weights file that was edited: whoever loads it afterwards refuses it, by the constant that differs."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from softnpu.driver import Context, GraphSource, ZeResult
from tests.support.daemon import Daemon
from tests.support.models import on_cpu, write_scale
from tests.support.work import LONG, Loaded, execute, failure, run

_INPUT = np.arange(4096, dtype=np.float32)


@pytest.fixture
def xml(private_dir: Path) -> Path:
    return write_scale(private_dir, 2.0)


def _edit(xml: Path) -> None:
    """Changes the last byte of the weights through a mapping, as a program with the file open would."""
    with (
        open(xml.with_suffix(".bin"), "r+b") as file,
        mmap.mmap(file.fileno(), 0) as content,
    ):
        content[-1] ^= 1


def test_the_next_engine_refuses_weights_that_were_edited_since(
    daemon: Daemon, context: Context, xml: Path
) -> None:
    expected = on_cpu(xml, _INPUT)[0]
    loaded = Loaded(context, xml)
    loaded.feed(_INPUT)
    with context.create_command_queue() as queue:
        run(queue, loaded.commands)
        np.testing.assert_array_equal(loaded.outputs[0], expected)
        _edit(xml)
        daemon.kill_engine()
        fence = execute(queue, loaded.commands)
        error = failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_INVALID_ARGUMENT)
    assert "constant 'weights'" in str(error)
    assert "other weights" in str(error)


def test_weights_that_were_edited_before_they_are_loaded_are_refused(context: Context, xml: Path) -> None:
    with GraphSource.from_ir(xml) as source:
        graph = context.create_graph(source)
    _edit(xml)
    error = failure(graph.initialize, ZeResult.ERROR_INVALID_ARGUMENT)
    assert "constant 'weights'" in str(error)
    _edit(xml)  # as it was
    graph.initialize()
