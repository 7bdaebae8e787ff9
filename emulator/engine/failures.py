"""Why a submission fails that no command of it is to blame for in words of its own."""

from __future__ import annotations

import logging
from typing import NoReturn

from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.openvino import errors as openvino_errors

log = logging.getLogger(__name__)


def cancelled() -> ErrorInfo:
    """Return what a cancelled submission ends with."""
    return ErrorInfo(
        result=ZeResult.ERROR_NOT_AVAILABLE, object="submission", found="cancelled before it was done"
    )


def out_of_memory(object: str = "submission") -> ErrorInfo:
    """Return what ends for which the engine has no memory."""
    return ErrorInfo(
        result=ZeResult.ERROR_OUT_OF_HOST_MEMORY,
        object=object,
        found="the engine ran out of memory",
        expected="memory to run it",
        hint="use smaller models or command lists, or give the machine more memory",
    )


def failed_inference(error: RuntimeError) -> ErrorInfo:
    """Return OpenVINO's reason for a failed inference."""
    if openvino_errors.is_out_of_memory(error):
        return out_of_memory("inference")
    return ErrorInfo(
        result=ZeResult.ERROR_UNKNOWN,
        object="inference",
        found=openvino_errors.reason(error),
        expected="an inference that ends",
    )


def waited_too_long(tdr_ms: int) -> ErrorInfo:
    """Return what a submission ends with for which nobody has signalled an event."""
    return ErrorInfo(
        result=ZeResult.ERROR_DEVICE_LOST,
        object="command queue",
        found=f"a submission waited for {tdr_ms} ms without progress",
        expected="the event that it waits for",
        hint="signal the event, or create a new queue after finding out why nobody does",
    )


def give_up(why: str) -> NoReturn:
    """End this engine, which no longer knows all that it must: the next one is told everything again.

    By no `Exception`: this is not the end of the submission that may be running.
    """
    log.critical("%s: the engine ends", why, exc_info=True)
    raise SystemExit(1)
