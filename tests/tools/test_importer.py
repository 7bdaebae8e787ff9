"""The generator of the tables of the real compiler, on a small source of its own; and the tables."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from softnpu.emulator.arithmetic import dialect, operation_types
from softnpu.tools.generators import importer

_ROOT = Path(__file__).parents[2]
_SOURCE = """
static const DispatchMap dispatchMap{
        {ov::op::v0::Parameter::get_type_info_static(), &NGraphImporter::parseEmpty},
        MAP_ENTRY(ov::opset1::Relu),
        MAP_ENTRY(ov::opset4::MVN),
        MAP_ENTRY(ov::op::v13::FakeConvert),
        MAP_ENTRY(ov::op::internal::RMS),
        MAP_ENTRY(ov::opset5::GRUSequence),
        MAP_ENTRY(ov::intel_npu::op::OfTheirOwn),
};
mlir::Type importPrecision() {
    switch (precision) {
    case ov::element::Type_t::f16:
        return mlir::Float16Type::get(ctx);
    }
}
void NGraphImporter::parseNode(mlir::OpBuilder& builder, const std::shared_ptr<ov::opset1::Relu>& origNode) {
    SmallVector<int64_t> strides(origNode->get_strides().begin(), origNode->get_strides().end());
    if (strides.empty()) {
        VPUX_THROW("no strides");
    }
    auto op = builder.create<IE::ReLUOp>(createLocation(origNode), inputs[0]);
}
void NGraphImporter::parseNode(mlir::OpBuilder& builder,
                               const std::shared_ptr<ov::opset5::GRUSequence>& origNode) {
    const auto lengths = dynamic_cast<ov::opset7::Constant*>(origNode->input_value(2).get_node());
    VPUX_THROW_UNLESS(lengths != nullptr, "'{0}'", origNode->get_friendly_name());
    VPUX_THROW_UNLESS(origNode->get_clip() == 0.0f, "no clip");
    const auto unused = origNode->get_hidden_size();
    builder.create<IE::GRUSequenceOp>(createLocation(origNode), inputs[0]);
}
void run() {
    manager.register_pass<ov::pass::GroupNormalizationDecomposition>();
    passConfig->disable<ov::pass::PullThroughReduce>();
}
"""
_DIALECT = """
def IE_ReLUOp :
    IE_LayerOp<
        "ReLU"
    > {}
def IE_SquaredDifferenceOp : IE_LayerOp<"SquaredDiff"> {}
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Both tables, made of the small source."""
    checkout, root = tmp_path / "checkout", tmp_path / "root"
    for path, text in ((importer.IMPORTER, _SOURCE), (f"{importer.DIALECT}/all.td", _DIALECT)):
        (checkout / path).parent.mkdir(parents=True)
        (checkout / path).write_text(text)
    for path in (importer.TABLE, importer.WORDS):
        (root / path).parent.mkdir(parents=True)
    importer.main(root, checkout, "0123456789abcdef", "2030")
    return root


def test_the_tables_are_made_from_a_checkout(written: Path) -> None:
    table = tomllib.loads((written / importer.TABLE).read_text())
    assert table["source"]["version"] == "commit 0123456789ab"
    assert table["parsed"] == {
        "FakeConvert": ["opset13"],
        "GRUSequence": ["opset5"],
        "MVN": ["opset2"],  # that of opset 4 is the same
        "Parameter": ["opset1"],
        "RMS": ["ie_internal_opset"],
        "Relu": ["opset1"],
    }
    assert table["checked"] == {"GRUSequence opset5": ["clip", "input 2"], "Relu opset1": ["strides"]}
    assert table["before"] == {
        "passes": ["GroupNormalizationDecomposition"],
        "omitted": ["PullThroughReduce"],
    }
    assert table["types"]["imported"] == ["f16"]
    words = tomllib.loads((written / importer.WORDS).read_text())
    assert words["dialect"]["names"] == ["GRUSequence", "ReLU", "SquaredDiff"]
    assert words["words"]["Relu"] == ["ReLU"]


def test_every_second_word_for_a_type_is_accepted() -> None:
    for word, kind in operation_types.ALIASES.items():
        assert dialect.is_word(word)
        assert word in dialect.words([kind])
    assert dialect.words(["Softmax", "MatMul", "RMS", "Add_RMSNorm", "RNNCell"]) == (
        *("Add_RMSNorm", "FullyConnected", "MatMul", "RMS", "SoftMax"),
    )


@pytest.mark.parametrize("path", [importer.TABLE, importer.WORDS])
def test_a_table_names_its_source(path: str) -> None:
    source = tomllib.loads((_ROOT / path).read_text())["source"]
    assert source["repository"] == importer.REPOSITORY
    assert source["version"].startswith("commit ")
