"""The command line with models whose outputs have no static shape."""

from __future__ import annotations

from pathlib import Path

import openvino as ov
import pytest

from tests.support.cli import softnpu
from tests.support.dynamic import non_zero


@pytest.fixture
def sparse(private_dir: Path) -> Path:
    """x f32 [4, 4] -> the places of what is not 0."""
    path = private_dir / "sparse.xml"
    ov.serialize(non_zero([4, 4]), path)
    return path


@pytest.mark.usefixtures("cli_daemon")
def test_infer_compares_a_result_whose_size_depends_on_the_data(sparse: Path) -> None:
    words = softnpu("infer", sparse, "--compare", "CPU", "-n", "2").words
    assert "every number equals, bit by bit" in words
    assert "2x16" in words


def test_bench_needs_static_shapes_of_outputs_as_well(sparse: Path) -> None:
    assert "the shape of an output depends on the data" in softnpu("bench", "infer", sparse).complaint
