"""A reduced model as files that anyone can run: the model, its weights, its inputs and expected results."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino.passes import ConstantFolding, Manager

from softnpu.tools.compare.graph import Part
from softnpu.tools.shared.failures import UsageError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Reduced:
    """The written files: the model with its weights beside it, and the numbers."""

    model: Path
    numbers: Path
    operations: int


def check_target(path: Path) -> None:
    """Reject an unwritable model name before anything runs."""
    if path.suffix != ".xml":
        raise UsageError(f"--reduce {path}", found="another ending", expected="a file that ends in .xml")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--reduce {path}", found="no such directory", expected="a directory that exists")


def write(part: Part, expected: Mapping[str, Array], path: Path) -> Reduced:
    """Write the part, its inputs and its expected results. Raise `OSError`."""
    folding = Manager()
    folding.register_pass(ConstantFolding())
    folding.run_passes(part.model)
    ov.save_model(part.model, path, compress_to_fp16=False)
    numbers = path.with_suffix(".npz")
    named = {
        port.get_any_name(): expected[key] for port, key in zip(part.model.outputs, part.keys, strict=True)
    }
    _write_archive(numbers, {**part.feeds, **named})
    return Reduced(path, numbers, part.operations)


def _write_archive(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write as `numpy.savez_compressed`, which cannot write an array named like one of its parameters."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
