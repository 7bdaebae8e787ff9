"""Times and counts of the supervisor that no operator changes; tests shorten them."""

from __future__ import annotations

import os

import msgspec


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds where the name says so.

    `handshake_s`: a connection without a Hello is closed. `first_client_s`: a daemon that ends when idle
    waits at least so long for its first client, and for a monitor to ask. `close_s`: then children that do
    not end are killed.
    `compilers`: most workers at once. One ends after `compiler_idle_s` without a job; it is killed after
    `compiler_stall_s` without progress. The spare starts `spare_delay_s` after it was needed, and
    `spare_retry_s` after a failure, twice that after each more.
    `min_hang_s`, `min_start_s`: the watchdog acts after no less than this time without progress, in a command
    and in a start or a load. `ban_window_s`: how long a reset counts against its process.
    `let_go_s`: how long what a client has given back may run on; less if only others use the engine.
    `function_idle_s`: the virtual function of another user ends so long after its last context.
    `trace_silence_s`: a trace ends whose tracer asks for nothing.
    `engine_backlog`: an engine that leaves more messages than this unread is replaced.
    """

    handshake_s: float = 5.0
    first_client_s: float = 5.0
    close_s: float = 2.0
    compilers: int = max(1, min(4, os.cpu_count() or 1))
    compiler_idle_s: float = 10.0
    compiler_stall_s: float = 10.0
    spare_delay_s: float = 0.5
    spare_retry_s: float = 0.5
    min_hang_s: float = 1.0
    min_start_s: float = 10.0
    let_go_s: float = 12.0  # a little more than an engine gives itself
    ban_window_s: float = 60.0
    function_idle_s: float = 5.0
    trace_silence_s: float = 10.0
    engine_backlog: int = 200_000
