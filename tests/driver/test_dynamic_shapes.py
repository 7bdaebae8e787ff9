"""Dynamic shapes below the plugin: compilation, and executions that report shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from softnpu.driver import Context, ZeError, ZeResult
from softnpu.driver.graph_properties import DYNAMIC_DIMENSION
from softnpu.emulator.links.compiler import CompileJob
from tests.support.compiler import Files, Made, Worker, WriteFiles, import_job, result, with_meta
from tests.support.dynamic import SHAPE, Execution, graph_of, named, non_zero, on_cpu, relu, source

Compile = Callable[..., Made]


@pytest.fixture
def compiled(worker: Worker, write: WriteFiles) -> Compile:
    """Compile a model; keyword arguments are fields of the job."""

    def compiled(model: ov.Model, **changes: object) -> Made:
        return worker.blob(*_job(write(model, name="model"), changes))

    return compiled


def refusal(worker: Worker, files: Files, **changes: object) -> tuple[ZeResult, str]:
    info = worker.info(*_job(files, changes))
    return result(info), f"{info.object}: {info.found}; {info.expected}; {info.hint}"


def taken() -> ov.Model:
    """A model that uses the name of a shape tensor."""
    x, own = source("[?]"), source([1], f"{SHAPE}x")
    return ov.Model([named(ops.add(x, own), "y")], [x, own], "taken")


def _job(files: Files, changes: dict[str, object]) -> tuple[CompileJob, list[int]]:
    if files.weights:
        return files.job(**changes), files.fds
    return files.job(weights=(), **changes), [files.xml]


# ---------------------------------------------------------------- metadata


def test_an_argument_has_its_upper_bounds_and_the_bounds_themselves(compiled: Compile) -> None:
    x = compiled(relu("[1..8,16]")).meta.arguments[0]
    assert (x.shape, x.byte_size, x.unbounded) == ((8, 16), 8 * 16 * 4, False)
    assert (x.partial_shape, x.model_shape) == ("[1..8,16]", (-1, 16))


def test_shape_tensors_follow_the_arguments_of_their_kind(compiled: Compile) -> None:
    fixed, wide = source([4], "fixed"), source("[?,4]", "wide")
    model = ov.Model([named(ops.relu(wide), "wider"), named(ops.relu(fixed), "same")], [wide, fixed], "mixed")
    arguments = compiled(model).meta.arguments
    assert [(argument.name, argument.input) for argument in arguments] == [
        ("wide", True),
        ("fixed", True),
        (f"{SHAPE}wide", True),
        ("wider", False),
        ("same", False),
        (f"{SHAPE}wider", False),
    ]
    assert [argument.shape_of for argument in arguments] == [-1, -1, 0, -1, -1, 3]
    for shape_tensor in (arguments[2], arguments[5]):
        assert (shape_tensor.element_type, shape_tensor.shape, shape_tensor.byte_size) == ("i32", (2,), 8)


def test_impossible_shapes_are_refused(worker: Worker, write: WriteFiles) -> None:
    static = {"config": {"NPU_DYNAMIC_SHAPE_TO_STATIC": "YES"}}
    unsupported, invalid = ZeResult.ERROR_UNSUPPORTED_FEATURE, ZeResult.ERROR_INVALID_ARGUMENT
    large = relu(f"[..{2**20},..{2**20}]")
    for model, changes, expected, words in (
        (relu("..."), {}, unsupported, ["input 'x'", "number of dimensions", "--shape x="]),
        (large, {}, ZeResult.ERROR_UNSUPPORTED_SIZE, ["input 'x'", "(-1)"]),
        (taken(), {}, unsupported, [f"'{SHAPE}x'"]),
        (relu("[?,16]"), static, invalid, ["input 'x'", "[?,16]"]),  # no upper bound
    ):
        what, text = refusal(worker, write(model), **changes)
        assert what == expected
        assert [word for word in words if word not in text] == []


def test_a_blob_that_reports_other_dimensions_than_its_ir_is_refused(
    worker: Worker, compiled: Compile
) -> None:
    made = compiled(relu("[1..8,16]"))
    changes: tuple[tuple[int, dict[str, object]], ...] = (
        (0, {"partial_shape": "[1..9,16]"}),
        (0, {"partial_shape": ""}),
        (0, {"partial_shape": "nonsense"}),
        (0, {"unbounded": True}),
        (0, {"shape_of": 1}),
        (0, {"byte_size": 1 << 20}),
        (1, {"shape_of": 2}),
        (1, {"shape_of": -1}),
        (1, {"shape_of": 2**40}),
        (1, {"shape": (3,), "byte_size": 12}),
    )
    for index, change in changes:
        arguments = list(made.meta.arguments)
        arguments[index] = msgspec.structs.replace(arguments[index], **change)
        wrong = with_meta(made.blob, arguments=tuple(arguments))
        info = worker.info(import_job(wrong), [wrong])
        assert result(info) == ZeResult.ERROR_INVALID_NATIVE_BINARY, change
        assert f"argument {index} " in info.found


# ---------------------------------------------------------------- Level Zero


def test_metadata_marks_dynamic_arguments_and_properties_list_shape_tensors(
    context: Context, tmp_path: Path
) -> None:
    graph = graph_of(context, tmp_path, relu("[1..8,?,3..,..5,16]"))
    mark = DYNAMIC_DIMENSION
    assert graph.get_argument_metadata(0).shape == (mark, mark, mark, mark, 16)
    told = graph.get_argument_properties(1)
    assert (told.name, told.dims, told.dims_count) == (f"{SHAPE}x", (5, 1, 1, 1, 1), 1)
    assert graph.get_properties().num_graph_args == 4


def test_an_execution_reports_its_shapes(context: Context, tmp_path: Path) -> None:
    model = relu("[1..8,16]")
    run = Execution(context, graph_of(context, tmp_path, model))
    random = np.random.default_rng(0)
    for rows in (3, 8, 1, 8, 2):
        x = random.standard_normal((rows, 16), np.float32)
        run.put("x", x)
        run.run()
        np.testing.assert_array_equal(run.output("y"), np.maximum(x, 0))
        behind = run.memory["y"].view(np.uint8)[x.nbytes :]
        assert rows != 3 or set(behind) == {0xAA}, "written behind the result"


def test_an_output_that_does_not_fit_reports_the_needed_shape(context: Context, tmp_path: Path) -> None:
    model = non_zero("[?,?]")
    graph = graph_of(context, tmp_path, model)
    x = np.ones((10, 10), np.float32)
    small = Execution(context, graph, {"x": 400, "places": 1599})
    small.put("x", x)
    with pytest.raises(ZeError, match=r"'places'.*1599 bytes.*1600 bytes for shape \[2, 100\]") as error:
        small.run()
    assert error.value.result == ZeResult.ERROR_INVALID_SIZE
    assert small.told("places") == [2, 100]
    assert small.memory["places"].view(np.uint8)[1599:].size == 0
    large = Execution(context, graph, {"x": 400, "places": 1600})
    large.put("x", x)
    large.run()
    np.testing.assert_array_equal(large.output("places"), on_cpu(model, [x])[0])
    # and the smaller one remains usable
    small.put("x", np.eye(10, dtype=np.float32))
    small.run()
    assert small.told("places") == [2, 10]
