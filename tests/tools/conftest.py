"""Fixtures of the tests of the tools."""

from __future__ import annotations

import pytest

from softnpu.driver.native_library import ENV_NATIVE_DIR
from tests.native.building import build


@pytest.fixture(scope="session")
def native_dir() -> dict[str, str]:
    """The variable with which commands take the native driver that the tests have built."""
    return {ENV_NATIVE_DIR: str(build().driver.parent)}
