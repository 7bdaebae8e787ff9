"""Remote tensors in other processes: functions that `multiprocessing` can start."""

from __future__ import annotations

from typing import Any

import openvino as ov
from openvino import opset13 as ops

from softnpu.plugin import Core


def doubler() -> ov.Model:
    """`y` is `x` times two; both f32[4]."""
    data = ops.parameter([4], ov.Type.f32, name="x")
    data.output(0).set_names({"x"})
    double = ops.multiply(data, ops.constant([2.0], ov.Type.f32))
    double.output(0).set_names({"y"})
    return ov.Model([ops.result(double)], [data], "doubler")


def double_in_place(socket: str, source: Any, target: Any) -> int:
    """Run the model on these tensors; return the bytes staged for it."""
    compiled = Core(socket).compile_model(doubler(), "NPU")
    request = compiled.create_infer_request()
    request.set_tensor("y", target)
    request.infer({"x": source})
    return compiled.staged_bytes


def run_once(socket: str, source: Any, target: Any, answers: Any) -> None:
    """Run `double_in_place` with the tensors as process arguments."""
    answers.put(double_in_place(socket, source, target))


def send_back(inbox: Any, outbox: Any) -> None:
    """Send the received tensor back, with a number added."""
    tensor = inbox.get()
    tensor.data[:] += 1
    outbox.put(tensor)
    inbox.get()  # the sender of a descriptor must live until it has been received
