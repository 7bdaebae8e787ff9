"""The digits demonstration: a committed model of handwritten digits, unseen images, text rendering.

The images are the held-out part of the "optical recognition of handwritten digits" set (UCI, CC BY 4.0;
Alpaydin and Kaynak, 1998) as scikit-learn ships it. `train_digits.py` of the repository made all three files.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

IMAGE_SIDE: Final = 8
MAX_VALUE: Final = 16.0
MODEL_FILE: Final = "digits.xml"
TEST_SET_FILE: Final = "test_images.npz"
# From blank to full ink, evenly.
_SHADES: Final = " ░▒▓█"


def model_path() -> Path:
    """Return the IR: input `image` f32 [1, 1, 8, 8] with values 0..16, output `probabilities` f32 [1, 10].

    Raise `FileNotFoundError` when the installation lacks the file.
    """
    return _data_file(MODEL_FILE)


def load_test_set() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return held-out images f32 [n, 1, 8, 8] with values 0..16, and labels i64 [n] with values 0..9.

    Raise `FileNotFoundError` when the installation lacks the file.
    """
    with np.load(_data_file(TEST_SET_FILE), allow_pickle=False) as archive:
        return archive["images"].astype(np.float32), archive["labels"].astype(np.int64)


def as_text(image: NDArray[Any]) -> str:
    """Return eight lines that show one digit in a terminal, two characters per pixel (each is twice as high).

    `image` holds 64 values, 0..16, in any shape such as [8, 8] or [1, 1, 8, 8]; values outside are clipped.
    Raise `ValueError` for any other number of values.
    """
    if image.size != IMAGE_SIDE * IMAGE_SIDE:
        raise ValueError(
            f"image of shape {image.shape} has {image.size} values, expected {IMAGE_SIDE * IMAGE_SIDE}"
        )
    darkest = len(_SHADES) - 1
    levels = np.rint(np.clip(image, 0.0, MAX_VALUE) * (darkest / MAX_VALUE)).astype(np.int64)
    rows = levels.reshape(IMAGE_SIDE, IMAGE_SIDE)
    return "\n".join("".join(_SHADES[level] * 2 for level in row) for row in rows)


def _data_file(name: str) -> Path:
    path = Path(str(files("softnpu.tools.demo") / "data" / name))
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: install softnpu again")
    return path
