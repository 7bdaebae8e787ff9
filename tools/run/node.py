"""`softnpu run --node`: a program that sees the files of the NPU where the kernel's driver has them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from softnpu.tools.run import node_view
from softnpu.tools.shared import failures
from softnpu.tools.shared.program import watch
from softnpu.tools.shared.scratch import in_use

if TYPE_CHECKING:
    from softnpu.driver import Driver
    from softnpu.emulator.interface.messages import EngineStatus
    from softnpu.emulator.interface.records import StatusWord
    from softnpu.emulator.supervisor.observe.sysfs_tree import SysfsTree

FOLDER: Final = "softnpu-node-"
_PERIOD_S: Final = 0.1
"""The kernel's files are always current; intel-npu-smi looks twice within 0.2 s."""


def run_with_node(command: list[str], environment: Mapping[str, str], path: Path) -> int:
    """Run a program in a view of /sys and /dev with the devices of the daemon at `path`; its exit code."""
    from softnpu.driver import Driver
    from softnpu.emulator.supervisor.observe.sysfs_tree import SysfsTree

    with (
        tempfile.TemporaryDirectory(prefix=FOLDER) as name,
        in_use(Path(name)),
        Driver.open(path, autostart=False, role="keeper") as driver,  # a monitor alone keeps no daemon
    ):
        folder = Path(name)
        (folder / node_view.VIEW).mkdir()
        tree = SysfsTree(folder / node_view.TREE)
        try:
            devices = [_Reported(engine) for engine in driver.status().engines]
            tree.begin(devices)
            line = [sys.executable, "-P", "-m", node_view.__name__, name, *command]
            return watch(line, environment, _Updates(driver, devices, tree).make, _PERIOD_S)
        finally:
            tree.close()


class _Reported:
    """A device as the daemon has reported it last."""

    def __init__(self, engine: EngineStatus) -> None:
        self.info, self.engine = engine.device, engine

    @property
    def memory_used(self) -> int:
        return self.engine.memory_used

    def counter(self, word: StatusWord) -> int:
        count: int = getattr(self.engine, f"{word.name.lower()}_ns")
        return count


class _Updates:
    """Keeps the files current while a program runs; says once that the daemon is gone."""

    def __init__(self, driver: Driver, devices: list[_Reported], tree: SysfsTree) -> None:
        self._driver, self._devices, self._tree = driver, devices, tree
        self._gone = False

    def make(self) -> None:
        """Ask the daemon, and write what has changed."""
        from softnpu.driver import ZeError

        if self._gone:
            return
        try:
            engines = self._driver.status().engines
        except ZeError as error:
            self._gone = True
            failures.print_error(error)  # the program goes on: its files stay as they are
            return
        for device, engine in zip(self._devices, engines, strict=True):
            device.engine = engine
        self._tree.update()
