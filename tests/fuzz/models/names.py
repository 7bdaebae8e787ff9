"""Names of every kind for tensors and nodes."""

from __future__ import annotations

import re
from typing import Any

import openvino as ov

from tests.fuzz.dice import Dice

_ODD = (
    "", " ", "x", "x:0", "a/b/c", "a,b", "a;b", "[1,2]", "<tag attr=\"1\">&amp;'", "grüße", "数据",
    "\U0001f600", "e\u0301", "tab\there", "line\nbreak", "\u202etxt", "-1", "0", "None", "vpux_ie_shape_x",
    "input.1", "a" * 300, "é" * 2000, "Parameter_1", "%s%n{0}", "\\", "..", "NaN",
)  # fmt: skip

_OURS = re.compile(r"\.\d+$")
"""The suffix of all `Graph` names, which OpenVINO's own never have."""


def name_unnamed(model: ov.Model, prefix: str = "") -> None:
    """Name nodes added by OpenVINO, whose own names count all nodes of the process."""
    for number, node in enumerate(model.get_ordered_ops()):
        if not _OURS.search(node.get_friendly_name()):
            node.set_friendly_name(f"{prefix}Added.{number}")
        for at, body in enumerate(_bodies(node)):
            name_unnamed(body, f"{prefix}{number}.{at}/")


def _bodies(node: Any) -> list[ov.Model]:
    if node.get_type_name() == "If":
        return [node.get_then_body(), node.get_else_body()]
    return [node.get_function()] if node.get_type_name() in ("Loop", "TensorIterator") else []


def name_all(dice: Dice, model: ov.Model) -> None:
    """Name tensors of inputs and outputs, and rename nodes, some oddly."""
    way = dice.randrange(10)
    if way < 3:
        return
    taken: set[str] = set()
    for index, port in enumerate([*model.inputs, *model.outputs]):
        if dice.chance(0.25):
            continue  # without a name
        names = {f"tensor{index}"} if way < 7 else {_odd(dice, index) for _ in range(dice.randint(1, 3))}
        names -= taken
        taken |= names
        if names:
            port.get_tensor().set_names(names | set(port.get_names()))
    if way < 8:
        return
    for node in model.get_ordered_ops():
        if dice.chance(0.3):
            node.set_friendly_name(_friendly(dice, node))


def _odd(dice: Dice, index: int) -> str:
    name = dice.pick(_ODD)
    return name if dice.chance(0.5) else f"{name}{index}"


def _friendly(dice: Dice, node: Any) -> str:
    """Return an odd friendly name, possibly shared; parts of control flow keep theirs distinct.

    Never empty: OpenVINO would replace it by a name that counts all nodes of the process.
    """
    name = dice.pick(_ODD[1:])
    return name if dice.chance(0.4) else f"{name}{node.get_friendly_name()}"
