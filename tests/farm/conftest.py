"""Ray nodes on this machine, with daemons; run with `-m farm`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openvino as ov
import psutil
import pytest

from softnpu.tools.demo.digits import load_test_set, model_path
from softnpu.tools.farm.local import LocalFarm, LocalNode, local_farm


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFarm]:
    """A farm without nodes; compiled models are kept in its own folder."""
    pytest.importorskip("ray", reason="the farm needs Ray: pip install 'softnpu[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("SOFTNPU_SOCKET", raising=False)
        # modules that Ray imports by name must be found in its workers too
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        )
        patch.setenv("SOFTNPU_AUTOSTART", "0")
        before = set(psutil.Process().children(recursive=True))
        with local_farm() as farm:
            yield farm
        left = set(psutil.Process().children(recursive=True)) - before
        _, alive = psutil.wait_procs(left, timeout=30)
        assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


@pytest.fixture(scope="module")
def node(farm: LocalFarm) -> LocalNode:
    """A node with two devices of platform 4000 and one of 3720."""
    return farm.add(("4000", "3720", "4000"), num_cpus=2)


@pytest.fixture(scope="session")
def images() -> np.ndarray:
    """Handwritten digits."""
    return load_test_set()[0][:200]


@pytest.fixture(scope="session")
def expected(images: np.ndarray) -> np.ndarray:
    """The results of OpenVINO's CPU device for each digit, in f32."""
    compiled = ov.Core().compile_model(model_path(), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.concatenate([compiled(images[i : i + 1])[0] for i in range(len(images))])
