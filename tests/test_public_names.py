"""Tests of the public names of `softnpu`, `softnpu.driver` and `softnpu.plugin`."""

from __future__ import annotations

import ast
import enum
import inspect
import pydoc
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest

import softnpu.driver
import softnpu.farm
import softnpu.plugin
import softnpu.plugin.torch
import softnpu.tools.predict
from tests.conformance.call_tables import CALLS

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.quick


def members(kind: type) -> set[str]:
    """Return public methods, properties, fields and attributes that a class's methods assign to `self`."""
    found: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("softnpu."):
            continue
        found |= set(vars(base)) | set(inspect.get_annotations(base))
        tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        assigned = [node for node in attributes if isinstance(node.ctx, ast.Store)]
        found |= {node.attr for node in assigned if ast.unparse(node.value) == "self"}
    return {name for name in found if not name.startswith("_")}


# The members of a class besides the functions of the C headers, which docs/level-zero.md lists.
HANDLE = "destroy destroyed"
DRIVER: dict[str, str] = {
    "Allocation": f"{HANDLE} address buffer handle id kind size view",
    "BuildLog": "size",
    "CommandList": f"{HANDLE} context",
    "CommandListImmediate": f"{HANDLE} context",
    "CommandListMutable": f"{HANDLE} context",
    "CommandQueue": f"{HANDLE} context describe handle lost mode spin",
    "Context": f"{HANDLE} create_event create_graph device export_memory handle idle_optimizations"
    " idle_pruning_timeout_ms import_memory import_system_memory lost open_shared_memory"
    " publish_shared_memory query_graph_memory query_memory",
    "CopyRegion": "depth height origin_x origin_y origin_z width",
    "Device": "driver import_external_semaphore info",
    "Driver": f"{HANDLE} activity daemon_pid limits lost session status stop_daemon",
    "Event": f"{HANDLE} pool",
    "EventPool": f"{HANDLE} context count",
    "ExternalSemaphore": f"{HANDLE} name signal take turn value wait",
    "Fence": f"{HANDLE} cancel describe queue",
    "Graph": f"{HANDLE} build_log compile_ms context flags get_weightless_blob handle load_ms meta origin"
    " profiled shared write_native_binary",
    "GraphDesc": "build_flags flags format input input_hash",
    "GraphExtension": "device",
    "GraphFlag": "",
    "GraphFormat": "",
    "GraphSource": "close fds format from_descriptors from_ir from_xml name sources weights xml_fd"
    " xml_length",
    "Lease": f"{HANDLE} devices environment lost socket take token",
    "MemoryQuery": "",
    "MetricGroup": "active holder index report_size",
    "MetricQuery": HANDLE,
    "MetricQueryPool": f"{HANDLE} count group",
    "MetricStreamer": f"{HANDLE} available group",
    "Mutation": "argument command kind memory strides",
    "MutationKind": "",
    "OptionType": "",
    "ProfilingPool": f"{HANDLE} count graph",
    "ProfilingQuery": f"{HANDLE} layers tasks",
    "ProfilingType": "",
    "PublishedMemory": f"{HANDLE} address buffer handle id kind name size view",
    "QueryNetwork": HANDLE,
    "QueueMode": "",
    "Sysman": "",
    "WeightFile": "fd length offset",
    "ZeError": "call info result",
    "ZeResult": "",
}


def listed(kind: type) -> set[str]:
    """Return the members that docs/level-zero.md names, also for a base class."""
    bases = {base.__name__ for base in kind.__mro__}
    entries = (call.python.partition(".") for call in CALLS)
    return {member for name, _, member in entries if name in bases and member}


def test_the_driver_has_these_names() -> None:
    assert set(dir(softnpu.driver)) == set(softnpu.driver.__all__) == set(DRIVER)
    assert {call.python.partition(".")[0] for call in CALLS} - {""} <= set(DRIVER)
    shown = pydoc.plain(pydoc.render_doc(softnpu.driver))
    assert [name for name in DRIVER if f"    class {name}(" not in shown] == []


def test_the_classes_of_the_driver_have_these_members() -> None:
    kinds: dict[str, Any] = {name: getattr(softnpu.driver, name) for name in DRIVER}
    differences = {
        name: members(kind) ^ (listed(kind) | set(DRIVER[name].split()))
        for name, kind in kinds.items()
        if not issubclass(kind, enum.Enum)
    }
    assert {name: found for name, found in differences.items() if found} == {}


def test_the_plugin_has_the_names_of_openvino_and_its_own() -> None:
    import openvino

    theirs = {name for name in dir(openvino) if not name.startswith("_")} | {"__version__"}
    assert set(dir(softnpu.plugin)) == theirs | set(softnpu.plugin.__all__)
    assert dir(softnpu.plugin.torch) == ["CompiledModule", "compile", "load", "save"]


def test_the_prediction_has_these_names() -> None:
    assert dir(softnpu.tools.predict) == [
        "Finding",
        "Hint",
        "LayerTrouble",
        "OperationSupport",
        "Prediction",
        "Repair",
        "Right",
        "Rightness",
        "Samples",
        "Source",
        "Speed",
        "Support",
        "Trouble",
        "Verdict",
        "predict",
    ]


def test_the_farm_has_these_names() -> None:
    names = ["BatchError", "FarmError", "Model", "Predictor", "lease", "remote", "resource"]
    assert softnpu.farm.__all__ == dir(softnpu.farm) == names
    assert all(getattr(softnpu.farm, name) for name in names)


def test_softnpu_has_its_version_and_the_ways_to_program_it() -> None:
    (generated,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["generate"]
    installed: dict[str, Any] = {}
    exec(generated["template"].replace("${version}", "1.2"), installed)
    assert (installed["__version__"], installed["__dir__"]()) == (
        "1.2",
        ["__version__", "driver", "farm", "kernel", "plugin"],
    )
