"""Constants that OpenVINO adds when it copies an operation: a Pad without a value gets a zero."""

from __future__ import annotations

import gc

import numpy as np
import openvino as ov
import pytest
from openvino.utils.node_factory import NodeFactory

from softnpu.emulator.compiler.constants import serialize_ir
from softnpu.plugin import Core
from softnpu.plugin.models.serializer import no_copy_form
from tests.support.serialized_forms import copying_form

VALUES = np.arange(1, 7, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def padded() -> ov.Model:
    """A Pad of [2,3] to [4,6] with three inputs."""
    x = ov.opset13.parameter([2, 3], np.float32, name="x")
    ends = [ov.opset13.constant(np.array(one, np.int64)) for one in ([1, 2], [1, 1])]
    pad = NodeFactory("opset12").create("Pad", [x, *ends], {"pad_mode": "constant"})
    assert len(pad.inputs()) == 3
    return ov.Model([pad.output(0)], [x], "padded")


def test_a_copied_constant_lives_as_long_as_its_record(padded: ov.Model) -> None:
    nodes = serialize_ir(padded, "padded")[1]
    gc.collect()
    assert [bytes(node.view()) for node in nodes if node.length == 4] == [bytes(4)]


@pytest.mark.parametrize("form", [copying_form, no_copy_form])
def test_both_serialised_forms_contain_the_constant(padded: ov.Model, form: object) -> None:
    data = bytes(form(padded, (1, 0)))  # type: ignore[operator]
    assert b'mp="' not in data or data.count(b'mp="') == 2  # the model's own constants


def test_a_pad_without_a_value_pads_with_zeros(padded: ov.Model, core: Core) -> None:
    found = core.compile_model(padded, "NPU").create_infer_request().infer([VALUES])[0]
    np.testing.assert_array_equal(found, np.pad(VALUES, ((1, 1), (2, 1))))


def test_weightless_imports_find_the_constant_in_the_given_model(padded: ov.Model, core: Core) -> None:
    stream = core.compile_model(padded, "NPU", {"ENABLE_WEIGHTLESS": "YES"}).export_model()
    found = core.import_model(stream, "NPU", model=padded).create_infer_request().infer([VALUES])[0]
    np.testing.assert_array_equal(found, np.pad(VALUES, ((1, 1), (2, 1))))
