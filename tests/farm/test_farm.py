"""Tasks, actors and predictors on Ray nodes: visible devices, results, and the effects of deaths."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import numpy as np
import pytest

from softnpu import farm as public
from softnpu.driver import Driver
from softnpu.farm import blobs
from softnpu.tools.demo.digits import model_path
from softnpu.tools.farm.local import LocalFarm, LocalNode
from tests.support.waiting import wait_gone, wait_until

pytestmark = [pytest.mark.farm, pytest.mark.timeout(600)]
WITHIN_S = 240.0
OPTIONS: dict[str, Any] = {"num_cpus": 0, "resources": {"softnpu_4000": 1}}


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Checked when the farm ends: until then Ray opens and starts what it likes."""


def get(reference: Any) -> Any:
    import ray

    return ray.get(reference, timeout=WITHIN_S)


def _devices() -> tuple[list[str], list[str], str]:
    """Return names and platforms for the plugin, and the platform for unmodified OpenVINO."""
    import openvino as ov

    from softnpu.plugin import Core

    core = Core()
    names = core.available_devices
    platforms = [core.get_property(name, "DEVICE_ARCHITECTURE") for name in names]
    return names, platforms, ov.Core().get_property("NPU", "DEVICE_ARCHITECTURE")


def test_tasks_see_the_devices_that_ray_assigned(node: LocalNode) -> None:
    two = public.remote(devices=2, num_cpus=0)(_devices)
    other = public.remote(platform="3720", num_cpus=0)(_devices)
    assert node.daemon_pid
    both, one = get([two.remote(), other.remote()])
    assert both == (["NPU.0", "NPU.1"], ["4000"] * 2, "4000")
    assert one == (["NPU"], ["3720"], "3720")


def test_actors_support_every_kind_of_method_and_pass_on_errors(node: LocalNode) -> None:
    class Actor:
        def __init__(self, start: int) -> None:
            self.calls = start

        async def later(self) -> int:
            self.calls += 1
            return self.calls

        def wrong(self) -> None:
            self.calls += 1
            raise ValueError("bad input")

    assert node.daemon_pid
    options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 3, "max_task_retries": 3}
    actor = public.remote(platform="3720", **options)(Actor).remote(10)
    assert get(actor.later.remote()) == 11
    with pytest.raises(ValueError, match="bad input"):
        get(actor.wrong.remote())
    assert get(actor.later.remote()) == 13, "an error of the program was tried once"


def test_an_asynchronous_function_is_a_task(node: LocalNode) -> None:
    async def answer() -> int:
        return 42

    assert node.daemon_pid
    assert get(public.remote(answer).remote()) == 42


def test_a_lost_daemon_ends_the_worker_and_the_task_is_retried(node: LocalNode, tmp_path: Any) -> None:
    def survives(mark: str, pid: int) -> int:
        from softnpu.plugin import Core

        compiled = Core().compile_model(model_path(), "NPU")
        if not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(pid, signal.SIGKILL)
        return int(compiled(np.zeros((1, 1, 8, 8), np.float32))[0].shape[1])

    before = node.daemon_pid
    task = public.remote(num_cpus=0, max_retries=3)(survives)
    assert get(task.remote(str(tmp_path / "mark"), before)) == 10
    assert node.daemon_pid != before


# ------------------------------------------------------------ predictors


def _predictor(**options: Any) -> Any:
    import ray

    model = public.Model.of(model_path())
    return ray.remote(public.Predictor).options(**OPTIONS, **options).remote(model)


def _numbers(actor: Any, images: np.ndarray) -> np.ndarray:
    import ray

    references = [actor.__call__.remote({"image": images[i : i + 50]}) for i in range(0, len(images), 50)]
    return np.concatenate([part["probabilities"] for part in ray.get(references, timeout=WITHIN_S)])


def test_predictors_share_one_compilation_and_one_image(
    node: LocalNode, images: np.ndarray, expected: np.ndarray
) -> None:
    import ray

    actors = [_predictor() for _ in range(2)]
    for actor in actors:
        assert np.array_equal(_numbers(actor, images), expected)
    store = ray.get_actor(blobs.STORE, blobs.NAMESPACE)
    assert get(store.compilations.remote()) == 1
    with Driver.open(node.socket, autostart=False, role="monitor") as monitor:
        assert [engine.images for engine in monitor.status().engines] == [1, 0, 1]
    with pytest.raises(public.BatchError, match="columns images"):
        get(actors[0].__call__.remote({"images": images}))


def test_a_predictor_survives_the_death_of_daemon_engine_and_store(
    node: LocalNode, images: np.ndarray, expected: np.ndarray
) -> None:
    import ray

    actor = _predictor()
    assert np.array_equal(_numbers(actor, images), expected)
    with Driver.open(node.socket, autostart=False, role="monitor") as monitor:
        engines = [engine.engine_pid for engine in monitor.status().engines]
    for pid in engines:
        os.kill(pid, signal.SIGKILL)
    assert np.array_equal(_numbers(actor, images), expected)
    before = node.daemon_pid
    os.kill(before, signal.SIGKILL)
    wait_gone(before)
    assert np.array_equal(_numbers(actor, images), expected)
    ray.kill(ray.get_actor(blobs.STORE, blobs.NAMESPACE), no_restart=False)
    assert np.array_equal(_numbers(_predictor(), images), expected)


def test_ray_data_gets_each_row_once_even_if_an_actor_is_killed(
    node: LocalNode, images: np.ndarray, expected: np.ndarray
) -> None:
    import ray

    assert node.daemon_pid
    rows = [{"image": image, "id": number} for number, image in enumerate(images)]
    predicted = ray.data.from_items(rows, override_num_blocks=4).map_batches(
        public.Predictor,
        fn_constructor_args=(public.Model.of(model_path()),),
        fn_constructor_kwargs={"keep": ["id"]},
        batch_size=32,
        concurrency=1,
        num_cpus=0,
        resources={public.resource("4000"): 1},
    )
    found: list[dict[str, Any]] = []
    for row in predicted.iter_rows():
        if not found:
            _kill_one_worker(node)
        found.append(row)
    assert sorted(row["id"] for row in found) == list(range(len(images)))
    for row in found:
        assert np.array_equal(row["probabilities"], expected[row["id"]])


def _kill_one_worker(node: LocalNode) -> None:
    """Kill a worker that has leased a device of the node."""
    with Driver.open(node.socket, autostart=False, role="monitor") as monitor:
        holders = [lease.pid for lease in monitor.status().leases]
    if holders:
        os.kill(holders[0], signal.SIGKILL)


def test_a_model_that_cannot_be_compiled_is_reported_once(node: LocalNode, tmp_path: Any) -> None:
    import ray

    assert node.daemon_pid
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    actor = ray.remote(public.Predictor).options(**OPTIONS, max_restarts=3).remote(str(broken))
    with pytest.raises(ray.exceptions.RayActorError, match=r"broken|model\.onnx"):
        get(actor.__call__.remote({}))


def test_ray_serve_answers_concurrent_requests(
    node: LocalNode, images: np.ndarray, expected: np.ndarray
) -> None:
    from ray import serve

    class Digits:
        def __init__(self, path: str) -> None:
            self.predictor = public.Predictor(path)

        async def __call__(self, batch: Any) -> Any:
            return (await asyncio.to_thread(self.predictor, {"image": batch}))["probabilities"]

    assert node.daemon_pid
    application = serve.deployment(ray_actor_options=OPTIONS)(Digits).bind(str(model_path()))
    handle = serve.run(application, name="digits", route_prefix=None)
    try:
        parts = [handle.remote(images[begin : begin + 50]) for begin in range(0, len(images), 50)]
        found = np.concatenate([part.result(timeout_s=WITHIN_S) for part in parts])
    finally:
        serve.shutdown()
    assert np.array_equal(found, expected)


def test_the_death_of_a_node_moves_its_actors(
    farm: LocalFarm, images: np.ndarray, expected: np.ndarray
) -> None:
    import ray

    dying = farm.add(("5010",))
    model = public.Model.of(model_path())
    options = {"num_cpus": 0, "resources": {public.resource("5010"): 1}}
    actor = (
        ray.remote(public.Predictor).options(**options, max_restarts=-1, max_task_retries=-1).remote(model)
    )
    assert np.array_equal(_numbers(actor, images), expected)
    daemon = dying.daemon_pid
    farm.kill(dying)
    wait_gone(daemon)
    farm.add(("5010",))
    assert np.array_equal(_numbers(actor, images), expected)


def test_the_status_of_the_farm_has_nodes_and_leases(node: LocalNode) -> None:
    import ray

    from softnpu.tools.farm.cluster import ClusterWatcher

    watcher = ClusterWatcher()
    actor = _predictor()
    get(actor.__call__.remote({"image": np.zeros((1, 1, 8, 8), np.float32)}))

    def nodes() -> Any:
        return watcher.look(WITHIN_S).nodes

    wait_until(lambda: any(one.leased for each in nodes() for one in each.platforms), what="a lease")
    found = {one.platform: one.devices for each in nodes() for one in each.platforms if not each.problem}
    assert found.items() >= {"4000": 2, "3720": 1}.items()
    assert node.daemon_pid
    ray.kill(actor)
