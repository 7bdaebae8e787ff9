"""A scan of the inputs decides, without reading the model, whether it can have a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from softnpu.driver import GraphSource
from softnpu.plugin import Core, openvino_runtime
from softnpu.plugin.batch.input_scan import scan_model, scan_xml
from softnpu.plugin.models import model_source
from tests.support.batches import F32, conv_net, matmul_net, model_of, parameter


def test_a_model_without_a_batch_is_not_read(
    shared_core: Core, monkeypatch: pytest.MonkeyPatch, digits: Path, private_dir: Path
) -> None:
    def read(*_: Any) -> ov.Model:
        raise AssertionError("it was read")

    monkeypatch.setattr(openvino_runtime, "read_model", read)
    monkeypatch.setattr(model_source, "read_model", read)
    compiled = shared_core.compile_model(digits)
    assert compiled.get_property("BATCH_MODE") == "AUTO"
    ov.serialize(matmul_net(4, layout=""), private_dir / "rows.xml")
    compiled = shared_core.compile_model(private_dir / "rows.xml")
    assert compiled.get_property("BATCH_MODE") == "COMPILER"


def test_a_scan_finds_what_openvino_finds(private_dir: Path) -> None:
    x = parameter('x<1>, "two"', (ov.Dimension(1, 4), 3, -1), "NC...")
    y = parameter("y", (), "")
    y.output(0).set_names({"other, name", "y"})
    conv = conv_net(4)
    for number, model in enumerate((model_of([x, y], x, y), conv)):
        path = private_dir / f"{number}.xml"
        ov.serialize(model, path)
        with GraphSource.from_ir(path) as source:
            quick = scan_xml(source.xml_fd, source.xml_length)
        slow = scan_model(ov.Core().read_model(path))
        assert quick is not None
        assert sorted(map(str, quick.inputs)) == sorted(map(str, slow.inputs))
        assert quick.has_batch_layer == slow.has_batch_layer == (model is conv)


@pytest.mark.parametrize("names", [{""}, {"", "x"}])
def test_an_empty_tensor_name_is_ignored(shared_core: Core, private_dir: Path, names: set[str]) -> None:
    x = parameter("x", (-1,))
    x.output(0).get_tensor().set_names(names)
    y = opset13.relu(x)
    model = ov.Model([opset13.result(y)], [x])
    compiled = shared_core.compile_model(model, "NPU", F32 | {"NPU_BATCH_MODE": "PLUGIN"})
    data = np.array([-1, 2, 3], np.float32)
    np.testing.assert_array_equal(compiled([data])[0], np.maximum(data, 0))
    ov.serialize(model, private_dir / "empty.xml")
    with GraphSource.from_ir(private_dir / "empty.xml") as source:
        quick = scan_xml(source.xml_fd, source.xml_length)
    assert quick is not None
    assert quick.inputs[0].names == scan_model(model).inputs[0].names


def test_a_scan_leaves_unknown_xml_to_openvino(private_dir: Path) -> None:
    for text in (b"", b"<net>", b'<layer id="0" name="x" type="Parameter"><data/></layer>', b"x" * 5000,
                 b'<layer id="0" name="x" type="Parameter"><data shape="1,a"/></layer>',
                 b'<layer id="0" name="x" type="Parameter"><data shape="1"/></layer><body/>'):  # fmt: skip
        path = private_dir / "odd.xml"
        path.write_bytes(text)
        with GraphSource.from_ir(path) as source:
            assert scan_xml(source.xml_fd, source.xml_length) is None
