"""Memory as numpy sees it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
"""Bytes of a mapping: a view, never a copy."""
Words = npt.NDArray[np.uint64]
"""Words of 64 bits that several processes share."""
