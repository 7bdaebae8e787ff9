"""A job on nodes that are killed: each result has to come exactly once, and to be right bit by bit.

python -m tests.farm.acceptance --rows 20000 --nodes 4 --every 20
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from softnpu import farm
from softnpu.tools.bench.model import find_model
from softnpu.tools.farm.local import LocalFarm, local_farm

DISTINCT = 100
SHAPE = (1, 3, 64, 64)


def frame(number: int) -> np.ndarray[Any, Any]:
    """The input of a row; rows of one remainder have the same."""
    return np.random.default_rng(number % DISTINCT).random(SHAPE[1:], np.float32)


def digest(array: np.ndarray[Any, Any]) -> str:
    """What stands for a result: equal if every bit is."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


class Numbered(farm.Predictor):
    """Computes frames from their numbers, and gives digests of the results."""

    def __call__(self, batch: Any) -> Any:
        """Rows with a number get a digest."""
        images = np.stack([frame(int(number)) for number in batch["id"]])
        (outputs,) = super().__call__({"images": images}).values()
        return {"id": batch["id"], "digest": np.array([digest(output) for output in outputs])}


def expected(path: Path) -> list[str]:
    """The digests of OpenVINO's CPU device, in f32."""
    import openvino as ov

    core = ov.Core()
    model = core.read_model(path)
    model.reshape({"images": SHAPE})
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return [digest(compiled(frame(number)[None])[0][0]) for number in range(DISTINCT)]


class Killer(threading.Thread):
    """Kills a node every so often, and adds another one."""

    def __init__(self, local: LocalFarm, every_s: float, seed: int) -> None:
        super().__init__(daemon=True)
        self._local, self._every_s = local, every_s
        self._dice = random.Random(seed)
        self._ended = threading.Event()
        self.kills = 0

    def run(self) -> None:
        """Until `end` is called."""
        while not self._ended.wait(self._every_s):
            self._local.kill(self._dice.choice(self._local.nodes))
            self.kills += 1
            self._local.add(("4000",))

    def end(self) -> None:
        """Let it end, and wait for that."""
        self._ended.set()
        self.join()


def job(rows: int, nodes: int, every_s: float, seed: int) -> dict[str, Any]:
    """Run it; the figures. Raises `AssertionError` for a result that is missing, doubled or wrong."""
    import ray

    path = find_model("yolov8n", ()).path
    right = expected(path)
    with local_farm() as local:
        for _ in range(nodes):
            local.add(("4000",))
        predicted = ray.data.range(rows, override_num_blocks=max(nodes, rows // 100)).map_batches(
            Numbered,
            fn_constructor_args=(farm.Model.of(path, shapes={"images": SHAPE}),),
            batch_size=50,
            concurrency=nodes,
            num_cpus=0,
            resources={farm.resource("4000"): 1},
        )
        killer = Killer(local, every_s, seed)
        killer.start()
        begun = time.monotonic()
        seen: dict[int, int] = {}
        wrong = 0
        try:
            for row in predicted.iter_rows():
                number = int(row["id"])
                seen[number] = seen.get(number, 0) + 1
                wrong += row["digest"] != right[number % DISTINCT]
        finally:
            killer.end()
        taken = time.monotonic() - begun
    result = {
        "rows": rows,
        "nodes": nodes,
        "killed": killer.kills,
        "seconds": round(taken, 1),
        "missing": rows - len(seen),
        "doubled": sum(count > 1 for count in seen.values()),
        "wrong": wrong,
    }
    assert (result["missing"], result["doubled"], wrong) == (0, 0, 0), result
    return result


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--every", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    print(json.dumps(job(chosen.rows, chosen.nodes, chosen.every, chosen.seed)))


if __name__ == "__main__":
    main()
