"""The words of the status page that tell a sleeping client of the end of its session, or of the daemon."""

from __future__ import annotations

import logging
import mmap
from collections import Counter

from softnpu.emulator.common import linux
from softnpu.emulator.common.robust_words import ENDED, RobustWords
from softnpu.emulator.interface import records

log = logging.getLogger(__name__)


class SessionLives:
    """One word for each session, which the supervisor's thread holds while the session lives.

    A killed supervisor wakes nobody, but the kernel does: one sleeper on each word that its thread held. So
    no client depends on another one to pass that on, unless more sessions live than there are words.
    """

    def __init__(self, page: mmap.mmap, at: int) -> None:
        self._at = at
        self._page = page
        self._words = memoryview(page).cast("I")
        self._address = linux.address_of(page) + at
        self._robust: RobustWords | None = None
        self._sessions: Counter[int] = Counter()  # by their words

    def hold(self) -> None:
        """Begin in the thread whose end is that of the daemon. Clients look now and then where it cannot."""
        try:
            self._robust = RobustWords(self._address, records.LIVES)
        except OSError as error:
            log.warning("clients learn a little later of the daemon's end: %s", error)
            return
        at = records.STATUS_LIVES // 4
        self._words[at], self._words[at + 1] = records.LIVES, self._at  # no client has the page yet

    def begin(self, session: int) -> None:
        """A session lives from now on; its client does not know yet."""
        index = session % records.LIVES
        self._sessions[index] += 1
        if self._robust is not None:
            self._words[self._word(index)] = self._robust.held

    def end(self, session: int) -> None:
        """A session has ended: wake what sleeps in its process."""
        index = session % records.LIVES
        self._sessions[index] -= 1
        if not self._sessions[index]:
            del self._sessions[index]
            self._words[self._word(index)] = ENDED
        linux.futex_wake(self._address + records.LIFE_SIZE * index)

    def _word(self, index: int) -> int:
        return (self._at + records.LIFE_SIZE * index) // 4

    def close(self) -> None:
        self._words.release()
        if self._robust is not None:
            self._robust.close()
