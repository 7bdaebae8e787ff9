"""A model is prepared for empty inputs only a few times, however many ways there are to be empty."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.driver import Context, GraphSource
from softnpu.emulator.openvino.defects import empty_tensors, shared_tensors
from softnpu.emulator.openvino.image import LoadedImage
from tests.support import loaded_images
from tests.support.daemon import Daemon

_POOLS = 4


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


@pytest.fixture
def image(context: Context, private_dir: Path) -> LoadedImage:
    """Load a model of means over open dimensions, as an engine does, in the test's process."""
    inputs = [ops.parameter([1, 1, -1, -1], np.float32) for _ in range(_POOLS)]
    means = [ops.adaptive_avg_pool(each, ops.constant([2, 2])) for each in inputs]
    path = private_dir / "means.xml"
    ov.serialize(ov.Model([ops.result(each) for each in means], inputs, "means"), path)
    with GraphSource.from_ir(path) as source, context.create_graph(source) as graph:
        blob = bytes(graph.get_native_binary())
    return loaded_images.load(blob)


def _empty(rows: Sequence[int]) -> empty_tensors.Empty:
    return frozenset((at, 2) for at, count in enumerate(rows) if not count)


def _is_right(image: LoadedImage, rows: Sequence[int]) -> bool:
    """Return whether means of this many rows of ones are right: 0 of none."""
    request = image.compiled.create_infer_request()
    for at, count in enumerate(rows):
        request.set_input_tensor(at, ov.Tensor(np.ones((1, 1, count, 2), np.float32)))
    for at in range(_POOLS):
        request.set_output_tensor(at, ov.Tensor(np.full((1, 1, 2, 2), 7, np.float32)))
    request.infer()
    return all((request.get_output_tensor(at).data == (count > 0)).all() for at, count in enumerate(rows))


def test_every_combination_of_empty_inputs_is_right_after_few_compilations(image: LoadedImage) -> None:
    for _ in range(2):
        for rows in itertools.product((2, 0), repeat=_POOLS):
            if _empty(rows):
                image.expect_empty(_empty(rows))
            assert _is_right(image, rows)
    assert image.compilations <= 1 + _POOLS


def test_what_failed_to_be_renewed_is_renewed_before_it_runs(
    image: LoadedImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, compiled = ov.Core.compile_model, image.compiled

    def fails(core: ov.Core, *arguments: Any) -> ov.CompiledModel:
        if lacking:
            raise MemoryError
        return before(core, *arguments)

    lacking = True
    monkeypatch.setattr(ov.Core, "compile_model", fails)
    image.renew()
    assert (image.compilations, image.compiled) == (1, compiled)
    with pytest.raises(MemoryError):
        image.mend()
    lacking = False
    for _ in range(2):
        image.mend()
    assert image.compilations == 2
    assert image.compiled is not compiled
    assert _is_right(image, (2, 2, 2, 2))


def test_a_compilation_that_fails_half_way_changes_nothing(
    image: LoadedImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails in the second compilation, which OpenVINO needs for some models."""
    compiled = image.compiled

    def fails(*_: object) -> bool:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(shared_tensors, "take_inputs", fails)
        image.renew()
    assert (image.compilations, image.compiled) == (1, compiled)
    image.mend()
    assert image.compilations == 2


def test_what_failed_to_compile_is_compiled_before_it_runs(
    image: LoadedImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> ov.CompiledModel:
        raise MemoryError

    rows = (0, 2, 2, 2)
    with monkeypatch.context() as patch:
        patch.setattr(ov.Core, "compile_model", fails)
        with pytest.raises(MemoryError):
            image.expect_empty(_empty(rows))
    image.expect_empty(_empty(rows))
    assert _is_right(image, rows)
    assert image.compilations == 2
