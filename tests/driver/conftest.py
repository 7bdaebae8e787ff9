"""Fixtures of the driver's tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from softnpu.driver import CommandQueue, Context
from softnpu.emulator.disk_cache.cache import ModelCache
from tests.support.cache import Warnings, cache_in
from tests.support.compiler import Files, Worker, WriteFiles, convolution, writing
from tests.support.daemon import Daemon


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    """Driver tests only use the device; those that break it request their own daemon."""
    return shared_daemon


@pytest.fixture
def queue(context: Context) -> CommandQueue:
    """A queue of normal priority."""
    return context.create_command_queue()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One worker for all tests of a module: after refusing a job it must do the next one."""
    worker = Worker()
    yield worker
    assert worker.process.poll() is None, "a job has killed the worker"
    worker.close()
    assert worker.process.returncode == 0


@pytest.fixture
def write(tmp_path: Path) -> Iterator[WriteFiles]:
    """Write models to disk."""
    with writing(tmp_path) as write:
        yield write


@pytest.fixture
def static(write: WriteFiles) -> Files:
    """A convolution over 16 x 16 pixels; its weights begin at byte 100 of their file."""
    return write(convolution([1, 3, 16, 16]), lead=100)


@pytest.fixture
def dynamic(write: WriteFiles) -> Files:
    """The same for any number of pictures of any size."""
    return write(convolution([-1, 3, -1, -1]), name="pictures")


@pytest.fixture
def directory(private_dir: Path) -> Path:
    return private_dir / "cache"


@pytest.fixture
def cache(directory: Path) -> ModelCache:
    return cache_in(directory)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Warnings:
    """Messages that the test has logged so far, warnings or worse."""
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
