"""`softnpu metrics`: serve metrics to Prometheus, or print the same text once."""

from __future__ import annotations

import threading
from typing import Annotated, Final

import typer

from softnpu.tools.shared.console import out, print_line
from softnpu.tools.shared.daemon_connection import SocketOption, socket_path
from softnpu.tools.shared.failures import ToolError

_PORT: Final = 9812


def metrics(
    listen: Annotated[
        str, typer.Option(metavar="[ADDRESS:]PORT", help="Where to serve; an address of IPv6 in brackets.")
    ] = f"127.0.0.1:{_PORT}",
    once: Annotated[bool, typer.Option("--once", help="Print the text once, and serve nothing.")] = False,
    details: Annotated[
        bool, typer.Option("--details", help="Also of each session and model: many series with time.")
    ] = False,
    socket: SocketOption = None,
) -> None:
    """Serve the daemon's metrics to Prometheus, until Ctrl-C. A daemon may come and go meanwhile.

    It needs prometheus-client: pip install 'softnpu[metrics]'.
    """
    address, port = _endpoint(listen)
    try:
        import prometheus_client
    except ImportError as error:
        raise ToolError(
            "softnpu metrics",
            found="no prometheus-client",
            expected="an installation with it",
            hint="install it with: pip install 'softnpu[metrics]'",
        ) from error
    from softnpu.tools.metrics.collector import DaemonCollector
    from softnpu.tools.shared.monitor.sample import Monitor

    path = socket_path(socket)
    monitor = Monitor(path)
    registry = prometheus_client.CollectorRegistry(auto_describe=False)
    registry.register(DaemonCollector(monitor, details))
    try:
        if once:
            out.file.write(prometheus_client.generate_latest(registry).decode())
            return
        try:
            server, thread = prometheus_client.start_http_server(port, address, registry)
        except OSError as error:
            raise ToolError(
                f"address {listen}",
                found=error.strerror or str(error),
                expected="an address of this machine with a free port",
                hint="choose another one with --listen",
            ) from error
        print_line(f"metrics of {path} at http://{listen if ':' in listen else f'{address}:{port}'}/metrics")
        try:
            threading.Event().wait()
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
    finally:
        monitor.close()


def _endpoint(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise typer.BadParameter(f"{text!r}; expected ADDRESS:PORT or PORT, with a port from 1 to 65535")
    return address.strip("[]") or "127.0.0.1", int(port)
