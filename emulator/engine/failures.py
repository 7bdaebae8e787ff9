"""Errors not caused by a single command."""

from __future__ import annotations

import logging
from typing import NoReturn

from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.openvino import errors as openvino_errors

log = logging.getLogger(__name__)


def cancelled() -> ErrorInfo:
    """Return the error of a cancelled submission."""
    return ErrorInfo(
        result=ZeResult.ERROR_NOT_AVAILABLE, object="submission", found="cancelled before it was done"
    )


def out_of_memory(object: str = "submission") -> ErrorInfo:
    """Return the error of an object for which the engine lacks memory."""
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
    """Return the error of a submission whose event was not signalled in time."""
    return ErrorInfo(
        result=ZeResult.ERROR_DEVICE_LOST,
        object="command queue",
        found=f"a submission waited for {tdr_ms} ms without progress",
        expected="the event that it waits for",
        hint="signal the event, or create a new queue after finding out why nobody does",
    )


def give_up(why: str) -> NoReturn:
    """End this engine because its state is incomplete: the next one is told everything again.

    Raises no `Exception`, which would end the running submission as well.
    """
    log.critical("%s: the engine ends", why, exc_info=True)
    raise SystemExit(1)
