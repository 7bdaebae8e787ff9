"""Why a submission fails that no command of it is to blame for in words of its own."""

from __future__ import annotations

from softnpu.emulator.common import openvino_errors
from softnpu.emulator.interface.result import ErrorInfo, ZeResult


def cancelled() -> ErrorInfo:
    """Return what a cancelled submission ends with."""
    return ErrorInfo(
        result=ZeResult.ERROR_NOT_AVAILABLE, object="submission", found="cancelled before it was done"
    )


def out_of_memory() -> ErrorInfo:
    """Return what a submission ends with for which the engine has no memory."""
    return ErrorInfo(
        result=ZeResult.ERROR_OUT_OF_HOST_MEMORY,
        object="submission",
        found="the engine ran out of memory",
        expected="memory to run it",
        hint="submit shorter command lists, or give the machine more memory",
    )


def failed_inference(error: RuntimeError) -> ErrorInfo:
    """Return OpenVINO's reason for a failed inference."""
    return ErrorInfo(
        result=ZeResult.ERROR_UNKNOWN,
        object="inference",
        found=openvino_errors.reason(error),
        expected="an inference that ends",
    )
