"""Fixtures of the tests of `softnpu check`."""

from __future__ import annotations

import pytest

from softnpu.driver.native_library import NativeLibrary
from tests.native.building import build


@pytest.fixture(scope="session")
def native() -> NativeLibrary:
    """The libraries, built once for each state of the sources."""
    return build()
