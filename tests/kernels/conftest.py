"""A process of kernels for the tests of a file; kernels that a test adds are forgotten."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from softnpu.emulator.kernels.client import KernelClient
from softnpu.emulator.kernels.process import KernelProcess
from tests.support.kernels import forgotten


@pytest.fixture(scope="module")
def client() -> Iterator[KernelClient]:
    """A process that lasts: no kernel may harm it."""
    with KernelProcess() as running:
        yield running


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    with forgotten():
        yield
