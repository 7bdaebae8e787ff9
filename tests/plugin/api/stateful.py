"""`test_stateful.py` and `test_remote_api.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

from tests.plugin.api.table import Side


def _memory(shape: tuple[int, ...], kind: Any) -> openvino.Model:
    data = ops.parameter(list(shape), kind, name="input_data")
    start = ops.constant(np.zeros(shape, kind))
    total = ops.add(ops.read_value(start, "var_id_667", kind, list(shape)), data)
    return openvino.Model([ops.result(total)], [ops.assign(total, "var_id_667")], [data], "memory")


def _steps(side: Side, caller: Any, call: Any, shape: tuple[int, ...], kind: Any, mode: str) -> Any:
    (state,) = caller.query_state()
    found = [state.name, str(state.state.element_type)]
    for _ in range(3):
        if mode == "set":
            state.state = side.ov.Tensor(np.full(shape, 5, kind))
        elif mode == "reset":
            state.reset()
        elif mode == "reset all":
            caller.reset_state()
        found.append(call({0: np.full(shape, 1, kind)})[0].tolist())
    return found


def query_state_write_buffer(side: Side) -> Any:
    found = []
    for shape, kind in (((10,), np.float32), ((2, 3), np.int32), ((2, 2, 2), np.float16)):
        compiled = side.ov.Core().compile_model(_memory(shape, kind), side.device)
        for mode in ("normal", "set", "reset", "reset all"):
            request = compiled.create_infer_request()
            found.append(_steps(side, request, request.infer, shape, kind, mode))
            compiled.reset_state()
            found.append(_steps(side, compiled, compiled, shape, kind, mode))
    return found
