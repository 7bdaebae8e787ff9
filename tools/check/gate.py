"""The gate of `--first`: at each note drivers ask whether to go on, and the program stops where it did wrong.

A driver asks after it has written a note, and waits for the answer, so that whatever its program has done
before is in the notes. What another program could have told it is there as well: a note is written before the
call that it is about returns.
"""

from __future__ import annotations

import selectors
import socket
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from softnpu.tools.check import output
from softnpu.tools.check.analysis import Analysis, analyse
from softnpu.tools.check.findings import Findings
from softnpu.tools.check.notebook import Notebook

_CREDENTIALS: Final = struct.Struct("iII")


class Gate:
    """Answers all drivers with notes in `folder`. `found`: what the program was stopped with.

    `debugger`: the one that the program is stopped for; empty: the signal ends it.
    """

    def __init__(
        self, folder: Path, debugger: str, patterns: Sequence[tuple[str, str]], *, as_device: bool
    ) -> None:
        self.found: Findings | None = None
        self._folder = folder
        self._mode = b"p" if debugger == "pdb" else b"t"
        self._patterns = patterns
        self._as_device = as_device
        self._live = Analysis(Notebook(folder, names=False), as_device=as_device)
        self._known = 0
        self._guilty: set[str] = set()
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.bind(str(folder / "gate"))
        self._server.listen(64)
        self._end, self._ended = socket.socketpair()
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> Gate:
        self._service = self._thread.submit(self._serve)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.close()
        self._thread.shutdown()
        if failure is None:
            self._service.result()  # raises what has ended it

    def _serve(self) -> None:
        # whatever happens, drivers that wait see the end of their sockets, and go on
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            for own in (self._server, self._ended):
                selector.register(stack.enter_context(own), selectors.EVENT_READ)
            self._answer_all(selector, stack)

    def _answer_all(self, selector: selectors.BaseSelector, stack: ExitStack) -> None:
        while True:
            for key, _ in selector.select():
                if key.fileobj is self._ended:
                    return
                if key.fileobj is self._server:
                    client = stack.enter_context(self._server.accept()[0])
                    selector.register(client, selectors.EVENT_READ)
                    with suppress(ConnectionError):
                        client.send(self._mode)
                elif isinstance(key.fileobj, socket.socket) and not self._answer(key.fileobj):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()

    def _answer(self, client: socket.socket) -> bool:
        """Let a program go on, or stop it; return whether it is still there."""
        with suppress(ConnectionError):
            if client.recv(1):
                peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                stops = self._stops(_CREDENTIALS.unpack(peer)[0])
                client.send(b"s" if stops else b"g")
                return True
        return False

    def _stops(self, pid: int) -> bool:
        if self.found is None:
            self._look()
        stops = any(process.endswith(f" ({pid})") for process in self._guilty)
        if stops:
            self._guilty.clear()  # the first one stops; what comes then is a consequence, or for the debugger
        return stops

    def _look(self) -> None:
        """Read what is new; if something is wrong that is not suppressed, say so."""
        self._live.book.read()
        found = self._live.so_far().found
        if len(found) == self._known:
            return
        self._known = len(found)
        findings = analyse(self._folder, as_device=self._as_device)  # with the lines of C++ frames
        certain = {each.kind for each in found.values()}  # not what only the end tells
        findings.found = {key: each for key, each in findings.found.items() if each.kind in certain}
        left_out = output.suppress(findings, self._patterns)
        if findings.found:
            self.found = findings
            output.show(findings, left_out)
            self._guilty = {place.process for each in findings.found.values() for place in each.places}
