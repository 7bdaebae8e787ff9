"""Fixtures of the tests of the device's arithmetic."""

from __future__ import annotations

import openvino as ov
import pytest

from softnpu.emulator.arithmetic import library
from tests.plugin.conftest import shared_core

__all__ = ["openvino_core", "shared_core"]


@pytest.fixture(scope="session")
def openvino_core() -> ov.Core:
    """Plain OpenVINO; the rounding extension has been built."""
    library.ensure(lambda: None)
    return ov.Core()
