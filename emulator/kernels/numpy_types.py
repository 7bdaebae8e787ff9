"""Element types that numpy has."""

from __future__ import annotations

from typing import Final

import numpy as np

TYPES: Final = {
    "boolean": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "u8": np.uint8,
    "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "f16": np.float16, "f32": np.float32,
    "f64": np.float64,
}  # fmt: skip
