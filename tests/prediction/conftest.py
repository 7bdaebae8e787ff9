"""Fixtures of the prediction tests."""

from __future__ import annotations

from tests.arithmetic.conftest import openvino_core, shared_core

__all__ = ["openvino_core", "shared_core"]
