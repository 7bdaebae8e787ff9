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
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from softnpu import farm
from softnpu.tools.bench.model import find_model
from softnpu.tools.farm.local import local_farm

DISTINCT = 100
SHAPE = (1, 3, 64, 64)


def frame(number: int) -> np.ndarray[Any, Any]:
    """Return the input of a row; rows with the same remainder have the same input."""
    return np.random.default_rng(number % DISTINCT).random(SHAPE[1:], np.float32)


def digest(array: np.ndarray[Any, Any]) -> str:
    """Return a digest of a result: equal if every bit is."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


class Numbered(farm.Predictor):
    """Computes frames from their numbers, and returns digests of the results."""

    def __call__(self, batch: Any) -> Any:
        """Add a digest to rows with a number."""
        images = np.stack([frame(int(number)) for number in batch["id"]])
        (outputs,) = super().__call__({"images": images}).values()
        return {"id": batch["id"], "digest": np.array([digest(output) for output in outputs])}


def expected(path: Path) -> list[str]:
    """Return the digests of OpenVINO's CPU device, in f32."""
    import openvino as ov

    core = ov.Core()
    model = core.read_model(path)
    model.reshape({"images": SHAPE})
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return [digest(compiled(frame(number)[None])[0][0]) for number in range(DISTINCT)]


class Consumer(threading.Thread):
    """Receives the rows of a job and records how often each arrives, and whether it is right."""

    def __init__(self, predicted: Any, right: list[str]) -> None:
        super().__init__(daemon=True)
        self._predicted, self._right = predicted, right
        self.seen: Counter[int] = Counter()
        self.wrong = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Consume to the last row."""
        try:
            for row in self._predicted.iter_rows():
                number = int(row["id"])
                self.seen[number] += 1
                self.wrong += row["digest"] != self._right[number % DISTINCT]
        except BaseException as failure:  # noqa: BLE001 - raised where the job is judged
            self.failure = failure


def job(rows: int, nodes: int, every_s: float, seed: int) -> dict[str, Any]:
    """Run it; return the figures. Raise `AssertionError` for a missing, duplicate or wrong result."""
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
        consumer = Consumer(predicted, right)
        consumer.start()
        dice, kills = random.Random(seed), 0
        begun = time.monotonic()
        # Ray creates nodes in the main thread only
        while consumer.is_alive():
            consumer.join(every_s)
            if consumer.is_alive():
                local.kill(dice.choice(local.nodes))
                kills += 1
                local.add(("4000",))
        taken = time.monotonic() - begun
    if consumer.failure is not None:
        raise consumer.failure
    result = {
        "rows": rows,
        "nodes": nodes,
        "killed": kills,
        "seconds": round(taken, 1),
        "missing": rows - len(consumer.seen),
        "doubled": sum(count > 1 for count in consumer.seen.values()),
        "wrong": consumer.wrong,
    }
    assert (result["missing"], result["doubled"], result["wrong"]) == (0, 0, 0), result
    return result


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--every", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    print(json.dumps(job(chosen.rows, chosen.nodes, chosen.every, chosen.seed)))


if __name__ == "__main__":
    main()
