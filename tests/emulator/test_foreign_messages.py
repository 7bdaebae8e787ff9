"""A model that has taken over an engine or a compiler worker sends messages that ours never would."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from softnpu.driver import GraphSource, ZeResult
from softnpu.emulator.common import linux
from softnpu.emulator.interface import frames
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.result import ErrorInfo
from softnpu.emulator.links import bounds
from softnpu.emulator.links import compiler as jobs
from softnpu.emulator.links import engine as link
from tests.conftest import StartContext
from tests.support.models import image, on_cpu
from tests.support.work import Loaded, failure, same

_SENDS = """
#include <sys/socket.h>
static const unsigned char frame[] = {%s};
__attribute__((constructor)) static void send_it(void) {
    for (int fd = 0; fd < 256; ++fd) {
        int type = 0;
        socklen_t size = sizeof type;
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET)
            send(fd, frame, sizeof frame, MSG_NOSIGNAL);
    }
}
"""
_DIGEST = bytes(32)


def _info(**fields: Any) -> ErrorInfo:
    info = ErrorInfo(result=ZeResult.ERROR_UNKNOWN, object="o", found="f")
    return msgspec.structs.replace(info, **fields)


REPORTS: dict[str, msg.Message] = {
    "no number": link.ImageLoaded(image=1, load_ms=math.nan),
    "an endless time": link.ImageLoaded(image=1, load_ms=math.inf),
    "a time before the start": link.ImageLoaded(image=1, load_ms=-1.0),
    "a long time": link.ImageLoaded(image=1, load_ms=1e300),
    "an error that is none": link.ImageLoaded(image=1, load_ms=1.0, info=_info(result=0)),
    "a result of 64 bits": link.ImageLoaded(image=1, load_ms=1.0, info=_info(result=2**63)),
    "a long text": link.ImageLoaded(image=1, load_ms=1.0, info=_info(found="x" * 20_000)),
    "many walls": link.Ready(missing_protections=("x",) * 5_000),
    "a negative context": link.ContextDropped(context=-1),
}
OUTCOMES: dict[str, msg.Message] = {
    "no number": msg.Progress(stage="read", done=math.nan),
    "a long text": msg.Progress(stage="x" * 20_000, done=0.5),
    "an error that is none": msg.Failed(info=_info(result=ZeResult.SUCCESS)),
    "no descriptor": jobs.Compiled(blob_length=1, blob_digest=_DIGEST),
    "the outcome of another job": msg.CompilerOptionsAnswer(major=1, minor=0, opset=1, options=()),
    "a long digest": jobs.Compiled(blob_length=1, blob_digest=bytes(20_000)),
}


@pytest.fixture
def sends(private_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[msg.Message, int], Path]:
    """Build a library that sends a message over its process's channel."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(private_dir))  # readable by all sandboxed processes

    def build(message: msg.Message, request: int) -> Path:
        source, made = private_dir / "sends.c", private_dir / "sends.so"
        frame = frames.encode(request, msg.encode(message))
        source.write_text(_SENDS % ",".join(map(str, frame)))
        subprocess.run(["cc", "-shared", "-fPIC", "-o", made, source], check=True)
        return made

    return build


@pytest.mark.parametrize("name", REPORTS)
def test_an_engine_that_sends_it_is_replaced(
    start_context: StartContext, sends: Callable[[msg.Message, int], Path], digits: Path, name: str
) -> None:
    made = sends(REPORTS[name], 0)
    daemon, context = start_context(failpoints=f"engine.load=load({made})")
    loaded = Loaded(context, digits)
    assert same(loaded.infer(context.create_command_queue(), image()), on_cpu(digits, image()))
    assert daemon.engine().restarts == 1
    assert "sent a bad message" in daemon.log
    assert "internal error" not in daemon.log


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_worker_that_sends_it_ends_and_its_job_is_done_by_another(
    start_context: StartContext, sends: Callable[[msg.Message, int], Path], digits: Path, name: str
) -> None:
    made = sends(OUTCOMES[name], 1)
    daemon, context = start_context(failpoints=f"compiler.completing=load({made})")
    with GraphSource.from_ir(digits) as source:
        error = failure(lambda: context.create_graph(source), ZeResult.ERROR_MODULE_BUILD_FAILURE)
        context.create_graph(source)
    assert "sent a bad message" in error.info.found
    assert "internal error" not in daemon.log


def test_what_ours_send_is_taken() -> None:
    """The longest messages are accepted."""
    texts = _info(found="x" * 1000, expected="x" * 1000, hint="x" * 1000)
    failed = link.SubmissionFailed(context=1, queue=2**64 - 1, sequence=2**64 - 1, info=texts.shortened())
    assert bounds.decode(link.report_decoder, memoryview(msg.encode(failed))) == failed
    compiled = jobs.Compiled(blob_length=1, blob_digest=_DIGEST, log="x" * 30_000, name="x" * 20_000)
    assert bounds.decode(jobs.outcome_decoder, memoryview(msg.encode(compiled))) == compiled


def test_what_is_no_message_is_refused() -> None:
    for body in (b"", b"\xc1", msgspec.msgpack.encode({"t": "ready", "loader": "x"})):
        with pytest.raises(bounds.BadMessageError):
            bounds.decode(link.report_decoder, memoryview(body))


def test_files_that_can_change_or_are_shorter_than_said_are_refused() -> None:
    sealed, open_file = linux.sealed_copy("blob", b"blob"), linux.memfd("blob", 4)
    read_end, write_end = os.pipe()
    try:
        bounds.check_files([sealed], [4])
        for fds, lengths in [
            ([sealed], [5]), ([open_file], [4]), ([read_end], [4]), ([], [4]), ([sealed], [4, 4]),
        ]:  # fmt: skip
            with pytest.raises(bounds.BadMessageError):
                bounds.check_files(fds, lengths)
    finally:
        for fd in (sealed, open_file, read_end, write_end):
            os.close(fd)
