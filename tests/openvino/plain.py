"""`python -m tests.openvino.plain ID...`: run faults on OpenVINO's CPU device alone.

Each runs in a process of its own. Prints a line of JSON for each: what is wrong, and nothing if it is right.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import openvino as ov

from tests.openvino.faults import FAULTS

_F32 = {"INFERENCE_PRECISION_HINT": "f32"}
_LONGEST_S = 60


def _outcome(name: str) -> str:
    """Run one fault in a child; a process that ends is wrong as well."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(_LONGEST_S)
        core = ov.Core()

        def compile_(model: ov.Model, properties: Mapping[str, str]) -> Any:
            return core.compile_model(model, "CPU", {**_F32, **properties})

        found = FAULTS[name](compile_)
        os.write(writer, found.encode()[:4000] or b"\0")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return told.decode().strip("\0") if told else f"the process ends: {status}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps(_outcome(name)), flush=True)
