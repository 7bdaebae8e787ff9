"""The example of dynamic shapes runs as it is written."""

from __future__ import annotations

from tests.support.daemon import Daemon
from tests.tools.test_examples import run_example


def test_it_infers_with_every_shape_and_refuses_what_is_outside(daemon: Daemon) -> None:
    assert daemon.alive
    assert run_example("softnpu.tools.examples.dynamic_shapes") == [
        "matrix: [1..8,?]",
        "places: [2,?]",
        "matrix 2 x 3: 2 places, result [2, 2]",
        "matrix 8 x 100: 8 places, result [2, 8]",
        "matrix 1 x 1: 1 places, result [2, 1]",
        "matrix 3 x 5, in place: [[1, 4]]",
        "9 rows: input 'matrix': float32[9, 2] given; expected float32[1..8,?]",
    ]
