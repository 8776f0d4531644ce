"""Loggers under the names of the client library."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

__all__ = [
    "TRACE",
    "VERBOSE",
    "ClassLogger",
    "DebugLevel",
    "WSCLogger",
    "collect_wsc_log_settings",
    "get_level_name",
    "logger",
    "named_class_logger",
    "wsc_logger",
]  # fmt: skip

VERBOSE, TRACE = 15, 5
logging.addLevelName(VERBOSE, "VERBOSE")
logging.addLevelName(TRACE, "TRACE")


class DebugLevel(IntEnum):
    """Levels below INFO."""

    TRACE = TRACE
    VERBOSE = VERBOSE


class WSCLogger(logging.Logger):
    """A logger with levels between those of the standard library."""

    def verbose(self, text: str, *args: object, **kwargs: Any) -> None:
        """Log between INFO and DEBUG."""
        self.log(VERBOSE, text, *args, **kwargs)

    def trace(self, text: str, *args: object, **kwargs: Any) -> None:
        """Log below DEBUG."""
        self.log(TRACE, text, *args, **kwargs)


def _named(name: str) -> WSCLogger:
    before = logging.getLoggerClass()
    logging.setLoggerClass(WSCLogger)
    try:
        made = logging.getLogger(name)
    finally:
        logging.setLoggerClass(before)
    if not isinstance(made, WSCLogger):
        made.__class__ = WSCLogger
    return made  # type: ignore[return-value]


logger = _named("cerebras.appliance")
wsc_logger = logger


class ClassLogger:
    """A mixin whose ``logger`` has the class's name."""

    @property
    def logger(self) -> WSCLogger:
        """The class's logger."""
        return _named(f"cerebras.appliance.{type(self).__name__}")


def named_class_logger(kind: object = None, *_: object, **__: object) -> type | Callable[[type], type]:
    """Return a decorator that gives a class a ``logger`` named after it."""

    def with_logger(cls: type) -> type:
        setattr(cls, "logger", _named(f"cerebras.appliance.{cls.__name__}"))  # noqa: B010
        return cls

    return with_logger(kind) if isinstance(kind, type) else with_logger


@contextmanager
def collect_wsc_log_settings() -> Iterator[dict[str, object]]:
    """Yield no settings of workers' logs."""
    yield {}


def get_level_name(level: int | str) -> int | str:
    """Return a level by name, or a name by level."""
    return logging.getLevelName(level.upper() if isinstance(level, str) else level)
