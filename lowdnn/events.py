"""Events: one log line each, with stable ``key=value`` fields, and counters.

Lines go to ``logging.getLogger("lowdnn.<part>")`` and are written before the thing that they announce, so that the last
line names what crashed. The application decides where they go; ``log_to`` is the shortcut behind LOWDNN_LOG_LEVEL.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from threading import Lock

from lowdnn.config import Config, ConfigWarning
from lowdnn.forking import tell_after_fork
from lowdnn.one_line import one_line

#: Opens an annotated range of the given name.
Annotate = Callable[[str], AbstractContextManager[object]]


def event_logger(part: str) -> logging.Logger:
    """The logger ``lowdnn.<part>``; silent until the application, or ``log_to``, adds a handler."""
    logger = logging.getLogger(f"lowdnn.{part}")
    root = logging.getLogger("lowdnn")
    if not root.handlers:
        root.addHandler(logging.NullHandler())
    return logger


def event_line(event: str, fields: Mapping[str, object]) -> str:
    """One line, ``event key=value ...``. Empty values and those with blanks or quotes are quoted; control characters
    and line separators are escaped."""
    return " ".join([event, *(f"{key}={_quoted(str(value))}" for key, value in fields.items())])


def emit(logger: logging.Logger, level: int, event: str, fields: Mapping[str, object]) -> None:
    """Logs one event; costs one comparison when the level is off."""
    if logger.isEnabledFor(level):
        logger.log(level, "%s", event_line(event, fields))


def log_to(config: Config) -> logging.Handler | None:
    """Adds the handler that ``config`` asks for to the ``lowdnn`` logger; ``stop_logging`` undoes it."""
    if config.log_level == "off":
        return None
    path = config.log_file.replace("%p", str(os.getpid()))
    handler = _file_handler(path) if path else logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    level = logging.getLevelNamesMapping()[config.log_level.upper()]
    handler.setLevel(level)
    root = logging.getLogger("lowdnn")
    if root.level == logging.NOTSET or root.level > level:
        root.setLevel(level)
    root.addHandler(handler)
    return handler


class _LogFile(logging.FileHandler):
    """A file of events. That there is no room for one is told once."""

    _is_told = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._is_told:
            self._is_told = True
            reason = f"LOWDNN_LOG_FILE: {self.baseFilename}: {error}; events are lost"
            warnings.warn(reason, ConfigWarning, stacklevel=2)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


def _file_handler(path: str) -> logging.Handler:
    try:
        return _LogFile(path, encoding="utf-8")
    except OSError as error:
        warnings.warn(f"LOWDNN_LOG_FILE: {error}; taking standard error", ConfigWarning, stacklevel=4)
        return logging.StreamHandler()


def stop_logging(handler: logging.Handler) -> None:
    """Removes and closes a handler that ``log_to`` added."""
    logging.getLogger("lowdnn").removeHandler(handler)
    handler.close()


def range_annotator(config: Config) -> Annotate | None:
    """A function that opens an NVTX range in the domain ``lowdnn``; None unless asked for and the package ``nvtx`` is
    there."""
    if not config.nvtx:
        return None
    try:
        nvtx = import_module("nvtx")
    except ImportError:
        emit(event_logger("events"), logging.WARNING, "nvtx_missing", {"hint": "pip install nvtx"})
        return None
    return lambda name: nvtx.annotate(message=name, domain="lowdnn")


class Counters:
    """Named counts, safe to share between threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[str] = Counter()
        tell_after_fork(self)

    def after_fork(self) -> None:
        self._lock = Lock()

    def add(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self._counts[name] += amount

    def snapshot(self) -> dict[str, int]:
        """The counts now, by name."""
        with self._lock:
            return dict(sorted(self._counts.items()))


def _quoted(text: str) -> str:
    if text and text.isprintable() and not any(char in ' "=' for char in text):
        return text
    return '"' + one_line(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'
