"""Loads of images: all who wait for one are called back, whatever happens to one of them."""

from __future__ import annotations

import pytest

from softnpu.emulator.interface.result import ErrorInfo
from softnpu.emulator.links.compiler import Compiled
from softnpu.emulator.supervisor.state.images import Image, ImageState

pytestmark = pytest.mark.quick

_BLOB = Compiled(blob_digest=b"a", blob_length=1)


@pytest.mark.parametrize("info", [None, ErrorInfo(result=1, object="graph", found="a defect")])
def test_a_waiter_that_fails_keeps_no_other_one_waiting(info: ErrorInfo | None) -> None:
    image = Image(number=1, key=(b"a",), answer=_BLOB, weights=(), fds=[], owner=0)
    heard: list[str] = []

    def fail(_info: ErrorInfo | None, _ms: float) -> None:
        heard.append("fails")
        image.waiting.append(lambda *_: heard.append("next"))
        raise MemoryError

    image.waiting += [lambda *_: heard.append("first"), fail, lambda *_: heard.append("last")]
    with pytest.raises(MemoryError):
        image.finish_loading(info, 0.0)
    assert heard == ["first", "fails", "last"], "who asks meanwhile waits for the next load"
    assert fail in image.waiting, "it is called again after that"
    assert len(image.waiting) == 2
    assert image.state is (ImageState.COMPILED if info else ImageState.LOADED)
