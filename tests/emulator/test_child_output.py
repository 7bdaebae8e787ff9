"""What engines and compiler workers write: it reaches the log in bounded lines, also after a crash."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from softnpu.emulator.common import log_lines
from softnpu.emulator.supervisor.children import child_output
from softnpu.emulator.supervisor.children.child_output import ChildOutput
from softnpu.emulator.supervisor.reactor import Reactor
from tests.conftest import OpenContext, StartContext, StartDaemon
from tests.support.models import image, on_cpu
from tests.support.waiting import wait_until
from tests.support.work import Loaded, check_works, same

_FLOODS = """
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void writes(void) {
    for (int fd = 1; fd < 256; ++fd) if (ftruncate(fd, 0)) continue;
    fprintf(stderr, "\\033]0;PWNED\\007\\n2026-01-01 00:00:00,000 ERROR   softnpu: FORGED\\n\\377\\n");
    char *long_line = malloc(1 << 20);
    memset(long_line, 'x', 1 << 20);
    for (int at = 0; at < 1 << 20;) at += write(2, long_line + at, (1 << 20) - at);
    fprintf(stderr, "\\n");
    for (int line = 0; line < 20000; ++line) fprintf(stderr, "line %d\\n", line);
    fprintf(stderr, "the last words");
    abort();
}
"""


@pytest.fixture
def place(private_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that sandboxed processes can read, with the library."""
    place = private_dir / "extensions"
    place.mkdir(0o700)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(place))
    (place / "floods.c").write_text(_FLOODS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", place / "floods.so", place / "floods.c"], check=True)
    return place


def test_whatever_an_engine_writes_the_log_is_whole_and_of_lines(
    start_daemon: StartDaemon, open_context: OpenContext, place: Path, digits: Path
) -> None:
    daemon = start_daemon(failpoints=f"engine.load=load({place}/floods.so)")
    context = open_context(daemon)
    begin = daemon.log
    engine = daemon.engine().engine_pid
    loaded = Loaded(context, digits)
    assert same(loaded.infer(context.create_command_queue(), image()), on_cpu(digits, image()))
    log = daemon.log
    assert log.startswith(begin), "it was cut"
    assert all(line.isprintable() for line in log.split("\n"))
    told = [line for line in log.splitlines() if line.startswith(f"[{engine}] ")]
    assert rf"[{engine}] \x1b]0;PWNED\x07" in told
    assert rf"[{engine}] \xff" in told
    assert not any(line.startswith("2026-01-01") for line in log.splitlines())
    assert any("lines more were left out" in line for line in told)
    assert len(log) < 4 << 20
    assert daemon.engine().restarts == 1


def test_last_words_are_read_after_the_death(
    start_context: StartContext, open_context: OpenContext, place: Path, digits: Path
) -> None:
    (place / "dies.c").write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n"
        '__attribute__((constructor)) static void dies(void) { fprintf(stderr, "last words"); abort(); }\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", place / "dies.so", place / "dies.c"], check=True)
    rule = f"engine.load=load({place}/dies.so),compiler.completing=load({place}/dies.so):1:1"
    daemon, context = start_context(failpoints=rule)
    engine = daemon.engine().engine_pid
    Loaded(context, digits)
    ended = f"engine {engine} ended with signal 6"
    wait_until(lambda: ended in daemon.log, what="its end")
    assert f"[{engine}] last words" in daemon.log[: daemon.log.index(ended)]
    check_works(open_context(daemon))


def test_no_child_has_the_log_open(start_context: StartContext, digits: Path) -> None:
    daemon, context = start_context()
    Loaded(context, digits)
    (worker,) = daemon.status().compiler_pids
    sandboxed = [child.pid for child in psutil.Process(worker).children()]
    log = os.stat(f"/proc/{daemon.pid}/fd/2").st_ino
    for pid in (daemon.engine().engine_pid, worker, *sandboxed):
        assert stat.S_ISFIFO(os.stat(f"/proc/{pid}/fd/1").st_mode)
        fds = [os.stat(f"/proc/{pid}/fd/{fd}").st_ino for fd in os.listdir(f"/proc/{pid}/fd")]
        assert log not in fds


# ------------------------------------------------------------ lines


class _Pipe:
    """The output of a process of number 7, and the lines that the log has of it."""

    def __init__(self) -> None:
        self.reactor = Reactor()
        read_end, self.write_end = os.pipe()
        self.output = ChildOutput(read_end, 7, self.reactor)
        self.output.watch()
        self.lines: list[str] = []

    def write(self, data: bytes) -> None:
        assert os.write(self.write_end, data) == len(data)

    def look(self) -> list[str]:
        """The lines that have come by now."""
        self.reactor.after(0.0, self.reactor.stop)
        self.reactor._loop.running = True
        self.reactor.run()
        lines, self.lines = self.lines, []
        return lines

    def end(self) -> list[str]:
        os.close(self.write_end)
        self.output.close()
        return self.lines


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Pipe]:
    pipe = _Pipe()
    formatter = log_lines.LineFormatter()
    monkeypatch.setattr(
        logging.getLogger(log_lines._WRITTEN),
        "handle",
        lambda record: pipe.lines.append(formatter.format(record)),
    )
    yield pipe
    pipe.output.close()
    pipe.reactor.close()


def test_a_line_is_logged_when_it_ends(pipe: _Pipe) -> None:
    pipe.write(b"one\ntw")
    assert pipe.look() == ["[7] one"]
    pipe.write(b"o\n\xff\x1b\n\n")
    assert pipe.look() == ["[7] two", r"[7] \xff\x1b", "[7] "]
    pipe.write(b"rest")
    assert pipe.look() == []
    assert pipe.end() == ["[7] rest"]


def test_a_line_without_end_comes_in_parts(pipe: _Pipe) -> None:
    pipe.write(b"x" * 10_000)
    (line,) = pipe.look()
    assert line == f"[7] {'x' * child_output._LONGEST} (cut)"
    assert pipe.end() == []


def test_a_flood_is_counted(pipe: _Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(f"{child_output.__name__}.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(child_output, "_PAUSE_S", 0.0)
    pipe.write(b"line\n" * (child_output._LINES + 7))
    assert pipe.look() == ["[7] line"] * child_output._LINES
    now += child_output._PERIOD_S
    pipe.write(b"line\n")
    assert wait_until(pipe.look) == ["[7] (7 lines more were left out)", "[7] line"]
    assert pipe.end() == []


def test_a_child_that_closes_its_output_costs_no_time(pipe: _Pipe) -> None:
    os.close(pipe.write_end)
    assert pipe.look() == []
    assert not pipe.reactor._loop.selector.get_map()
    pipe.write_end = os.open(os.devnull, os.O_WRONLY)
