"""An engine behind on its orders: clients may use new objects at once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import OpenContext, StartContext
from tests.support.work import LONG, check_works, execute, fill

_MANY = 900
"""More orders than an engine's socket holds, which is some hundred."""


@pytest.mark.quick
@pytest.mark.parametrize("whose", ["own", "another session"])
def test_memory_of_which_the_engine_has_not_heard_yet_can_be_used(
    start_context: StartContext, open_context: OpenContext, whose: str
) -> None:
    daemon, context = start_context(tdr_ms=30_000)
    check_works(context)
    with daemon.stopped_engine():
        memory = [context.alloc_host(64) for _ in range(_MANY)]
        user = context if whose == "own" else open_context(daemon)
        used = memory[-1] if whose == "own" else user.alloc_host(4096)
        fence = execute(user.create_command_queue(), fill(user, used, 0x5A))

    assert fence.host_synchronize(LONG)
    assert np.all(used.view() == 0x5A)
    assert daemon.engine().restarts == 0
