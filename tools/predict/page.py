"""A prediction as an HTML page."""

from __future__ import annotations

import time
from pathlib import Path

from softnpu.tools.predict import screen
from softnpu.tools.predict.prediction import Prediction
from softnpu.tools.shared.pages import rendering


def write_page(prediction: Prediction, path: Path) -> None:
    """Write all answers to a file. Raise `ToolError` without jinja2, and `OSError`."""
    import msgspec

    values = {
        "prediction": msgspec.to_builtins(screen.as_document(prediction)),
        "when": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
    }
    rendering.write(path, "prediction.html", values)
