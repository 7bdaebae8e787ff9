"""`softnpu status --watch`, `metrics` and program names: the output agrees with the daemon."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from softnpu.driver import Driver
from softnpu.emulator.interface.messages import SessionActivity
from softnpu.tools.shared.monitor.programs import Programs
from softnpu.tools.shared.monitor.sample import Monitor, Sample
from softnpu.tools.shared.monitor.views import View
from tests.conftest import OpenContext, StartDaemon
from tests.support.cli import softnpu
from tests.support.daemon import Daemon
from tests.support.waiting import DEADLINE_S
from tests.support.work import Loaded

_DASHBOARD = Path(__file__).parents[2] / "tools" / "metrics" / "grafana-dashboard.json"
_SCRIPT = """
import sys
from softnpu.driver import Driver
with Driver.open() as driver:
    context = driver.devices[0].create_context()
    print("here", flush=True)
    sys.stdin.readline()
"""


def _values(text: str) -> dict[tuple[str, str], float]:
    """The samples of an exposition without buckets, by name and `device` label."""
    return {
        (sample.name, sample.labels.get("device", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if len(sample.labels.keys() - {"device", "platform"}) == 0
    }


# ------------------------------------------------------------ status


@pytest.mark.parametrize("options", [[], ["-X", "dev"]], ids=["plain", "option-with-value"])
def test_status_shows_the_script_its_models_and_its_share(
    cli_daemon: Daemon, tmp_path: Path, options: list[str]
) -> None:
    script = tmp_path / "my_camera.py"
    script.write_text(_SCRIPT)
    process = subprocess.Popen(
        [sys.executable, *options, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        (session,) = json.loads(softnpu("status", "--json").words)["sessions"]
        words = softnpu("status").words
        process.communicate("\n", DEADLINE_S)
    assert (session["pid"], session["program"], session["state"]) == (process.pid, "my_camera.py", "idle")
    assert session["share"] == session["inferences"] == 0
    assert re.search(rf" {process.pid} +my_camera\.py +idle +0\.0% ", words)
    assert cli_daemon.status().session_count == 0


def test_a_reused_pid_is_not_trusted() -> None:
    fields: dict[str, Any] = dict.fromkeys(SessionActivity.__struct_fields__, 0)
    fields |= {"client": "old\x1b[1m", "pid": os.getpid(), "start_time": 1, "state": ""}
    mine = Programs()
    session = msgspec.convert(fields | {"devices": (), "models": ()}, SessionActivity)
    assert mine.name(session) == "old?[1m"
    assert mine.command(session) == []


def test_samples_are_lines_of_json_and_rates_span_two_samples(
    cli_daemon: Daemon, open_context: OpenContext, digits: Path
) -> None:
    model = Loaded(open_context(cli_daemon), digits)
    model.infer(model.context.create_command_queue())
    once = json.loads(softnpu("status", "--json").words)
    assert 0 < once["sessions"][0]["share"] <= 1
    assert 0 < once["utilisation"][0] <= 1
    counts = {each["of"]: sum(each["counts"]) for each in once["histograms"]}
    assert counts["inference"] == cli_daemon.engine().inferences > 0
    lines = softnpu("status", "0.2", "--watch", "--count", "2", "--json").words.splitlines()
    documents = [json.loads(line) for line in lines]
    assert len(documents) == 2
    assert documents[0]["time"] < documents[1]["time"]
    for document in documents:
        assert document["utilisation"] == [0.0]
        assert (document["sessions"][0]["inferences_s"], document["sessions"][0]["models"]) == (0, ["digits"])
    words = softnpu("status", "0.2", "--watch", "-n", "1").words
    assert re.search(r" digits +NPU +loaded ", words)


def test_csv_has_the_columns_of_intels_tool(cli_daemon: Daemon) -> None:
    expected = "timestamp,power,frequency,bandwidth,tile_config,temperature,utilization,memory_usage"
    rows = list(csv.DictReader(io.StringIO(softnpu("status", "--csv").words)))
    assert ",".join(rows[0]) == expected
    assert len(rows) == 1
    used = f"{cli_daemon.engine().memory_used / 2**20:.2f}"
    assert [*rows[0].values()][1:] == ["", "0", "0.000", "0", "", "0", used]


def test_a_watch_reports_the_end_of_the_daemon_and_continues_with_the_next(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    command = [sys.executable, "-P", "-m", "softnpu.tools.cli", "status", "0.2", "-w", "--json"]
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with watch:
        assert watch.stdout is not None
        assert watch.stderr is not None
        assert json.loads(watch.stdout.readline())["pid"] == daemon.pid
        daemon.stop()
        assert "DEVICE_LOST" in watch.stderr.readline()
        second = start_daemon()
        while json.loads(watch.stdout.readline())["pid"] != second.pid:
            pass
        watch.send_signal(signal.SIGINT)
        _, said = watch.communicate(timeout=DEADLINE_S)
    assert watch.returncode == 130
    assert "Traceback" not in said


# ------------------------------------------------------------ metrics


def test_metrics_equal_the_counters_of_the_daemon_exactly(
    start_daemon: StartDaemon, open_context: OpenContext, digits: Path
) -> None:
    daemon = start_daemon(devices=("4000", "3720"))
    model = Loaded(open_context(daemon), digits, times=3)
    queue = model.context.create_command_queue()
    for _ in range(4):
        model.infer(queue)
    values = _values(softnpu("metrics", "--once", "--details").words)
    for engine in daemon.status().engines:
        name = f"NPU.{engine.device.index}"
        told = {
            "submissions_total": engine.submissions,
            "commands_total": engine.commands,
            "inferences_total": engine.inferences,
            "inference_duration_seconds_count": engine.inferences,
            "busy_seconds_total": engine.busy_ns / 1e9,
            "tile_busy_seconds_total": engine.tile_busy_ns / 1e9,
            "memory_used_bytes": engine.memory_used,
            "memory_bytes": engine.device.memory_total,
            "tiles": engine.device.tiles,
            "read_bytes_total": engine.read_bytes,
            "written_bytes_total": engine.written_bytes,
            "engine_restarts_total": engine.restarts,
        }
        assert {key: values[f"softnpu_{key}", name] for key in told} == told
    assert values["softnpu_inferences_total", "NPU.0"] == 12
    assert values["softnpu_up", ""] == values["softnpu_sessions", ""] == 1


def test_without_a_daemon_there_is_one_metric(socket: Path) -> None:
    assert _values(softnpu("metrics", "--once").words) == {("softnpu_up", ""): 0}
    assert not socket.exists()


@pytest.fixture
def socket(private_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = private_dir / "npu.sock"
    monkeypatch.setenv("SOFTNPU_SOCKET", str(path))
    return path


def test_metrics_are_served_on_loopback_until_ctrl_c(cli_daemon: Daemon) -> None:
    from socket import create_server

    with create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "Address already in use" in softnpu("metrics", "--listen", str(port)).complaint
    command = [sys.executable, "-P", "-m", "softnpu.tools.cli", "metrics", "--listen", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        said = served.stdout.readline()
        address = f"http://127.0.0.1:{port}/metrics"
        assert said == f"metrics of {cli_daemon.socket} at {address}\n"
        with urllib.request.urlopen(address, timeout=DEADLINE_S) as answer:
            assert _values(answer.read().decode())["softnpu_up", ""] == 1
        served.send_signal(signal.SIGINT)
        _, errors = served.communicate(timeout=DEADLINE_S)
    assert (served.returncode, errors) == (130, "")


def _queries(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [str(node[key]) for key in ("expr", "query") if isinstance(node.get(key), str)]
        return own + [query for value in node.values() for query in _queries(value)]
    return [query for value in node for query in _queries(value)] if isinstance(node, list) else []


def test_the_dashboard_queries_existing_metrics_and_labels(cli_daemon: Daemon) -> None:
    assert cli_daemon.alive
    families = list(text_string_to_metric_families(softnpu("metrics", "--once").words))
    labels = {sample.name: {*sample.labels} for family in families for sample in family.samples}
    board = json.loads(_DASHBOARD.read_text())
    queries = _queries(board)
    asked = {name for query in queries for name in re.findall(r"\bsoftnpu_\w+", query)}
    assert len(asked) > 15
    assert asked <= labels.keys()
    for query in queries:
        for name in re.findall(r"\b(softnpu_\w+)\{device", query):
            assert "device" in labels[name], query
        for grouped in re.findall(r"by \(le, (\w+)\)", query):
            assert grouped in labels[re.findall(r"softnpu_\w+", query)[0]], query
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}


# ------------------------------------------------------------ views


def test_shares_and_rates_cover_the_time_between_two_samples(
    shared_daemon: Daemon, open_context: OpenContext, digits: Path
) -> None:
    monitor, programs = Monitor(shared_daemon.socket), Programs()
    model = Loaded(open_context(shared_daemon), digits)
    queue = model.context.create_command_queue()
    before = monitor.poll()
    for _ in range(5):
        model.infer(queue)
    after = monitor.poll()
    monitor.close()
    assert isinstance(before, Sample)
    assert isinstance(after, Sample)
    view = View.of(after, before, programs)
    (device,), (session,), (known,) = view.devices, view.sessions, view.models
    assert device.inferences_s * view.interval_s == pytest.approx(5)
    # a session is sampled a moment after its device
    passed_s = after.sessions[0].age_s - before.sessions[0].age_s
    assert session.inferences_s * passed_s == pytest.approx(5)
    assert 0 < session.share <= 1
    assert device.tiles_used == pytest.approx(6 * device.utilisation, rel=0.1)
    assert (known.inferences, known.mean_s > 0) == (5, True)
    assert View.of(after, after, programs).devices[0].utilisation == 0


def test_a_monitor_finds_the_next_daemon(start_daemon: StartDaemon) -> None:
    first = start_daemon()
    monitor = Monitor(first.socket)
    assert isinstance(monitor.poll(), Sample)
    first.stop()
    assert isinstance(monitor.poll(), Exception)
    second = start_daemon()
    found = monitor.poll()
    assert isinstance(found, Sample)
    assert found.status.pid == second.pid
    assert found.status.session_count == 0
    monitor.close()
    with Driver.open(second.socket):
        assert second.status().session_count == 1
