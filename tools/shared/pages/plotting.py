"""Plots as inline SVG in the page's own colours: light and dark need no second picture."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from softnpu.tools.shared.pages.rendering import require

# matplotlib takes colours, not variables: each colour stands for a variable, and is replaced in the SVG
COLOURS: Final = {
    "--ink": "#010101", "--soft": "#020202", "--line": "#030303", "--series-1": "#040404",
    "--series-2": "#050505", "--series-3": "#060606", "--series-4": "#070707",
}  # fmt: skip


WIDE: Final = 8.0
NARROW: Final = 3.6
"""Widths in inches of a plot for a desk, and of one for a phone."""


def both(draw: Callable[[float], str]) -> str:
    """Draw a plot for wide and for narrow screens, of which the page shows the one that fits."""
    return "".join(
        f'<div class="{name}">{draw(width)}</div>' for name, width in (("broad", WIDE), ("narrow", NARROW))
    )


def figure(width: float, height: float, columns: int = 1, rows: int = 1) -> Any:
    """Return a figure of this size in inches and its axes. Raise `ToolError` without matplotlib."""
    matplotlib = require("matplotlib", "a plot")
    matplotlib.use("svg")
    settings: Mapping[str, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "softnpu",
        "font.family": "sans-serif",
        "font.size": 10,
        "text.color": COLOURS["--ink"],
        "axes.edgecolor": COLOURS["--line"],
        "axes.labelcolor": COLOURS["--soft"],
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": COLOURS["--soft"],
        "ytick.color": COLOURS["--ink"],
    }
    matplotlib.rcParams.update(settings)
    pyplot = require("matplotlib.pyplot", "a plot")
    return pyplot.subplots(rows, columns, figsize=(width, height), layout="constrained")


def svg(figure: Any) -> str:
    """Return the picture as an element of a page; close the figure."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    require("matplotlib.pyplot", "a plot").close(figure)
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # ids must be unique in a document, and a page has several pictures
    salt = f"p{abs(hash(text)) % 10**9}"
    text = re.sub(r'id="([^"]+)"', rf'id="{salt}-\1"', text)
    text = re.sub(r"#(?=[A-Za-z_][\w-]*[\")])", f"#{salt}-", text)
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var({name})")
    return re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px system-ui, sans-serif", text)
