"""What other processes of the tests do with remote tensors: functions that `multiprocessing` can start."""

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
    """Runs the model on these tensors; the bytes that were staged for it."""
    compiled = Core(socket).compile_model(doubler(), "NPU")
    request = compiled.create_infer_request()
    request.set_tensor("y", target)
    request.infer({"x": source})
    return compiled.staged_bytes


def run_once(socket: str, source: Any, target: Any, answers: Any) -> None:
    """As `double_in_place`, started with the tensors as arguments."""
    answers.put(double_in_place(socket, source, target))


def send_back(inbox: Any, outbox: Any) -> None:
    """Sends the tensor that it gets on, with a number added."""
    tensor = inbox.get()
    tensor.data[:] += 1
    outbox.put(tensor)
    inbox.get()  # the sender of a descriptor has to live until it was taken
