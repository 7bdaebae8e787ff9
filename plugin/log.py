"""The plugin's messages: Python loggers under `softnpu.plugin`, and LOG_LEVEL."""

from __future__ import annotations

import logging
from typing import Any

from openvino.properties.log import Level

from softnpu.plugin.properties.table import log_level_of_environment

TRACE = 5
_OFF = logging.CRITICAL + 10
_LEVELS = {
    Level.NO: _OFF,
    Level.ERR: logging.ERROR,
    Level.WARNING: logging.WARNING,
    Level.INFO: logging.INFO,
    Level.DEBUG: logging.DEBUG,
    Level.TRACE: TRACE,
}
_plugin = logging.getLogger("softnpu.plugin")


def set_level(level: Any) -> None:
    """Set LOG_LEVEL for all messages of the plugin. They go to stderr if the application has no handler."""
    _plugin.setLevel(_LEVELS[level])
    if level != Level.NO:
        _ensure_handler()


def model_log(level: Any | None) -> logging.Logger:
    """Return the logger of one compilation, with a level of its own or the plugin's (None)."""
    if level is None:
        return _plugin.getChild("core")
    # getLogger would keep it forever
    log = logging.Logger("softnpu.plugin.core", _LEVELS[level])
    log.parent = _plugin
    if level != Level.NO:
        _ensure_handler()
    return log


def _ensure_handler() -> None:
    if not _plugin.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(levelname)s] %(name)s: %(message)s"))
        _plugin.addHandler(handler)


if (_level := log_level_of_environment()) is not None:
    set_level(_level)
