"""The parts of a farm that need no Ray: requested devices, batches and inferences, owners of daemons."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openvino as ov
import openvino.opset13 as op
import pytest

from softnpu.driver import ZeError, ZeResult
from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface.result import ErrorInfo, Refused
from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.farm.batching import BatchRules
from softnpu.farm.errors import BatchError, FarmError, is_loss
from softnpu.farm.resources import Assigned, resource, resources_of, wanted
from softnpu.tools.farm.node import Node
from softnpu.tools.shared.failures import ToolError
from tests.conftest import StartDaemon
from tests.support.cli import softnpu
from tests.support.waiting import wait_gone, wait_until


def _model(*shape: Any, dtype: Any = np.float32) -> ov.Model:
    parameter = op.parameter(ov.PartialShape(list(shape)), dtype, name="x")
    parameter.output(0).set_names({"x"})
    doubled = op.add(parameter, parameter)
    doubled.output(0).set_names({"y"})
    return ov.Model([doubled], [parameter], "double")


def _rules(*shape: Any, dtype: Any = np.float32) -> BatchRules:
    model = _model(*shape, dtype=dtype)
    return BatchRules("double", model.inputs, model.outputs)


# ------------------------------------------------------------ resources


def test_devices_are_resources_by_platform() -> None:
    assert resource("3720") == "softnpu_3720"
    assert resources_of(("4000", "3720", "4000")) == {"softnpu_4000": 2, "softnpu_3720": 1}
    assert wanted(2, "4000") == {"softnpu_4000": 2}
    with pytest.raises(Refused):
        resource("4001")


@pytest.mark.parametrize("devices", [0, -1, 1.5, 9, float("nan")])
def test_an_impossible_number_of_devices_is_refused(devices: float) -> None:
    with pytest.raises(FarmError, match="whole devices"):
        wanted(devices, "4000")


def test_devices_assigned_by_ray_are_leased() -> None:
    assert Assigned.of({"CPU": 1.0}) is None
    assert Assigned.of({"CPU": 1.0, "softnpu_4000": 2.0}) == Assigned("4000", 2)
    assert Assigned.of({"softnpu_3720": 0.25}) == Assigned("3720", 1, 250)
    with pytest.raises(FarmError, match="3720, 4000"):
        Assigned.of({"softnpu_4000": 1.0, "softnpu_3720": 1.0})


# ------------------------------------------------------------ batches


@pytest.mark.parametrize(
    ("size", "count", "parts"),
    [(4, 8, [(0, 4), (4, 8)]), (4, 9, [(0, 4), (4, 8), (8, 9)]), (1, 2, [(0, 1), (1, 2)]), (4, 0, [])],
)
def test_rows_are_split_into_batches_of_a_fixed_size(
    size: int, count: int, parts: list[tuple[int, int]]
) -> None:
    rules = _rules(size, 3)
    assert [(part.start, part.stop) for part in rules.parts(count)] == parts


def test_an_incomplete_batch_is_padded_with_its_last_row() -> None:
    target = np.zeros((4, 2), np.float32)
    _rules(4, 2).fill(target, np.array([[1, 2], [3, 4]], np.float32))
    assert target.tolist() == [[1, 2], [3, 4], [3, 4], [3, 4]]


def test_a_dynamic_batch_takes_one_inference() -> None:
    rules = _rules(-1, 3)
    assert (rules.size, [(part.start, part.stop) for part in rules.parts(7)]) == (0, [(0, 7)])
    assert list(rules.parts(0)) == []
    assert rules.empty()["y"].shape == (0, 3)


GOOD = np.zeros((5, 3), np.float32)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({}, "column 'x'"),
        ({"z": GOOD}, "column 'x'"),
        ({"x": GOOD, "id": GOOD}, "columns id"),
        ({"x": GOOD[:, :2]}, r"\[5, 2\]"),
        ({"x": GOOD[0]}, r"\[rows, 3\]"),
        ({"x": GOOD.astype(np.float64)}, "astype"),
        ({"x": [[1.0], [1.0, 2.0]]}, "x"),
        ([1], "a list"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_by_name(batch: Any, words: str) -> None:
    with pytest.raises(BatchError, match=words) as caught:
        _rules(4, 3).checked(batch, ())
    assert "double" in str(caught.value)


def test_narrower_numbers_are_accepted_and_named_columns_are_kept() -> None:
    rows, count = _rules(4, 3).checked({"x": GOOD.astype(np.float16), "id": GOOD}, ["id"])
    assert (set(rows), count) == ({"x"}, 5)
    with pytest.raises(BatchError, match="no column id"):
        _rules(4, 3).checked({"x": GOOD}, ["id"])


def test_a_model_without_a_batch_is_refused() -> None:
    rows = op.parameter([4, 3], np.float32, name="rows")
    model = ov.Model([op.reduce_sum(rows, op.constant([0, 1], dtype=np.int32), False)], [rows], "sum")
    with pytest.raises(FarmError, match="first dimension"):
        BatchRules("sum", model.inputs, model.outputs)


# ------------------------------------------------------------ errors


def test_a_lost_device_is_distinguished_from_an_error_of_the_program() -> None:
    lost = ZeError("call", ErrorInfo(result=ZeResult.ERROR_DEVICE_LOST, object="a", found="b"))
    wrapped = RuntimeError("outer")
    wrapped.__cause__ = lost
    assert is_loss(lost)
    assert is_loss(wrapped)
    assert is_loss(RuntimeError("L0 ... ZE_RESULT_ERROR_DEVICE_LOST, code 0x70000001"))
    assert not is_loss(ValueError("ERROR_DEVICE_LOST"))
    assert not is_loss(
        ZeError("call", ErrorInfo(result=ZeResult.ERROR_INVALID_ARGUMENT, object="a", found="b"))
    )


def test_errors_travel_between_processes() -> None:
    error = BatchError("batch", found="a", expected="b", hint="do this")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.hint) == (BatchError, str(error), "do this")


# ------------------------------------------------------------ nodes


def test_a_node_offers_its_devices_to_ray(private_dir: Path) -> None:
    node = Node(private_dir / "npu.sock", ("4000", "3720"), "head:6379", ("--num-cpus", "2"))
    command = node.ray_command()
    assert command[:4] == ["ray", "start", "--address", "head:6379"]
    assert json.loads(command[5]) == {"softnpu_4000": 1, "softnpu_3720": 1}
    assert command[6:] == ["--num-cpus", "2"]
    assert Node(private_dir / "npu.sock", ("4000",)).ray_command()[2] == "--head"
    assert node.found() is None


def test_an_address_without_a_port_is_refused() -> None:
    misuse = softnpu("farm", "node", "--address", "head").misuse
    assert misuse.startswith("--address head: no host and port; expected HOST:PORT of a node of the cluster")


def test_a_running_daemon_is_found_and_must_match(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(devices=("3720", "4000"), leased_only=True)
    found = Node(daemon.socket, ()).found()
    assert found is not None
    assert found.platforms == ("3720", "4000")
    with pytest.raises(ToolError, match="3720, 4000"):
        Node(daemon.socket, ("4000",)).found()


def test_a_daemon_without_leases_is_refused(start_daemon: StartDaemon) -> None:
    with pytest.raises(ToolError, match="leased-only"):
        Node(start_daemon().socket, ()).found()


def test_the_daemon_of_a_node_is_restarted_and_ends_with_its_owner(private_dir: Path) -> None:
    socket = private_dir / "n" / "npu.sock"
    owner = subprocess.Popen(["sleep", "600"])
    settings = msgspec.json.encode(DaemonSettings(socket=str(socket), leased_only=True)).decode()
    keeper = subprocess.Popen([sys.executable, "-m", "softnpu.farm.keeper", settings, str(owner.pid)])
    try:
        first = wait_until(lambda: _serving(socket), what="a daemon")
        os.kill(first, signal.SIGKILL)
        last = wait_until(lambda: _serving(socket, other_than=first), what="the next daemon")
        owner.kill()
        owner.wait()
        assert keeper.wait(20) == 0
        wait_gone(last)
        assert not socket.exists()
    finally:
        keeper.kill()
        keeper.wait()
        owner.kill()
        owner.wait()


def _serving(socket: Path, other_than: int = 0) -> int:
    """The pid of the daemon that accepts connections; 0 if it is this one or there is none."""
    record = endpoint.read_record(socket)
    there = record is not None and record.pid != other_than and endpoint.accepts(socket)
    return record.pid if record is not None and there else 0


@pytest.mark.parametrize("keep_daemon", [False, True])
def test_ctrl_c_ends_a_node_whose_ray_and_daemon_do_not_end(private_dir: Path, keep_daemon: bool) -> None:
    ray = private_dir / "ray"
    ray.write_text("#!/bin/sh\ntrap '' TERM INT\necho up\nwhile :; do sleep 1; done\n")
    ray.chmod(0o755)
    code = (
        "import sys; from pathlib import Path; from softnpu.tools.farm.node import Node\n"
        "from softnpu.farm import keeper\n"
        "keeper.DaemonKeeper.close.__defaults__ = (3600.0,)\n"  # without Ctrl-C it has its time
        "where = Path(sys.argv[1])\n"
        f"sys.exit(Node(where / 'npu.sock', ('4000',)).run({keep_daemon}))"
    )
    environment = {**os.environ, "PATH": f"{private_dir}:{os.environ['PATH']}"}
    command = [sys.executable, "-P", "-c", code, str(private_dir)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as node:
        try:
            assert node.stdout is not None
            assert node.stdout.readline() == "up\n"
            daemon = 0
            if keep_daemon:
                daemon = wait_until(lambda: _serving(private_dir / "npu.sock"), what="the daemon")
                assert os.getpgid(daemon) != node.pid, "Ctrl-C must not end it before Ray"
                os.kill(daemon, signal.SIGSTOP)
            os.killpg(node.pid, signal.SIGINT)  # as a terminal does
            assert node.wait(60) == 130
            if keep_daemon:
                wait_gone(daemon)
        except BaseException:
            os.killpg(node.pid, signal.SIGKILL)
            raise
