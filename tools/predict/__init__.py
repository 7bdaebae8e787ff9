"""Predictions of the real NPU's behaviour with a model: `softnpu predict`, and the same in Python.

    from softnpu.tools.predict import predict

    prediction = predict("model.xml", platforms=("4000",))
    print(prediction.support["4000"].verdict)

- `prediction.py`: the function and its result.
- `section.py`: the interface of an answer; `support_section.py`, `right_section.py`, `speed_section.py`: the
  answers. `right/` finds the second one.
- `screen.py`: the command's output; `cli.py` is the command itself, which loads none of this for `--help`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from softnpu.emulator.prediction.support.findings import (
        Finding,
        OperationSupport,
        Source,
        Support,
        Verdict,
    )
    from softnpu.tools.predict.prediction import Prediction, predict
    from softnpu.tools.predict.right.result import LayerTrouble, Repair, Right, Rightness, Trouble
    from softnpu.tools.predict.section import Hint, Samples
    from softnpu.tools.predict.speed_section import Speed

_PLACES: Final = {
    "softnpu.emulator.prediction.support.findings": (
        "Finding",
        "OperationSupport",
        "Source",
        "Support",
        "Verdict",
    ),
    "softnpu.tools.predict.prediction": ("Prediction", "predict"),
    "softnpu.tools.predict.right.result": ("LayerTrouble", "Repair", "Right", "Rightness", "Trouble"),
    "softnpu.tools.predict.section": ("Hint", "Samples"),
    "softnpu.tools.predict.speed_section": ("Speed",),
}

__all__ = [
    "Finding",
    "Hint",
    "LayerTrouble",
    "OperationSupport",
    "Prediction",
    "Repair",
    "Right",
    "Rightness",
    "Samples",
    "Source",
    "Speed",
    "Support",
    "Trouble",
    "Verdict",
    "predict",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
