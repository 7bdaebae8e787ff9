"""Constants that f16 cannot hold: the compiler clamps them to 65504."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import numpy as np
import openvino as ov

from softnpu.emulator.arithmetic import groups
from softnpu.emulator.arithmetic.groups import Origin
from softnpu.emulator.arithmetic.rewriting import is_setting
from softnpu.emulator.arithmetic.settings import Arithmetic
from softnpu.tools.predict.right.measuring import extent_of
from softnpu.tools.predict.right.result import LayerTrouble, Trouble

_WIDE: Final = frozenset({"f32", "f64"})


def saturated(
    model: ov.Model, arithmetic: Arithmetic, known: Container[str]
) -> list[tuple[LayerTrouble, frozenset[str]]]:
    """Return the saturating constants of a model, each with the names of the f16 operations that read it.

    A constant that is not `known`, as a pass has made it, goes by its first reader.
    """
    origin, in_f32 = groups.origins(model), groups.kept_in_f32(model, arithmetic.kept)
    found = []
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Constant" or node.get_element_type().get_type_name() not in _WIDE:
            continue
        readers = [
            port.get_node()
            for port in node.output(0).get_target_inputs()
            if origin[port.get_node().get_name()] is Origin.DATA
            and port.get_node().get_name() not in in_f32
            and not is_setting(port)
        ]
        extent = extent_of(np.asarray(node.data, np.float32)) if readers else None
        if extent is not None and extent.overflows:
            shown = node if node.friendly_name in known else readers[0]
            trouble = LayerTrouble(
                layer=shown.friendly_name,
                type=shown.get_type_name(),
                step="" if shown is node else "constant",
                trouble=Trouble.SATURATES,
                largest=extent.largest,
                index=extent.index,
                beyond=extent.beyond,
                elements=extent.elements,
            )
            found.append((trouble, frozenset(each.friendly_name for each in readers)))
    return found
