"""The interface version and the names of the environment variables."""

from __future__ import annotations

from softnpu.emulator.interface import version


def test_the_interface_is_version_1_0() -> None:
    assert (version.INTERFACE_MAJOR, version.INTERFACE_MINOR) == (1, 0)


def test_environment_variables_keep_their_names() -> None:
    assert version.ENV_SOCKET == "SOFTNPU_SOCKET"
    assert version.ENV_AUTOSTART == "SOFTNPU_AUTOSTART"
    assert version.ENV_SPIN_US == "SOFTNPU_SPIN_US"
    assert version.ENV_DEVICES == "SOFTNPU_DEVICES"
    assert version.ENV_IDLE_S == "SOFTNPU_IDLE_S"
