"""What the real NPU would do with a model, said beforehand: `softnpu predict`, and the same in Python.

    from softnpu.tools.predict import predict

    prediction = predict("model.xml", platforms=("4000",))
    print(prediction.support["4000"].verdict)

- `prediction.py`: the function and its result.
- `section.py`: what each question is to be answered by; `support_section.py`, `right_section.py`,
  `speed_section.py`: the answers. `right/` finds the second one.
- `screen.py`: what the command prints; `tools/predict/cli.py` is the command itself.
"""

from __future__ import annotations

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
