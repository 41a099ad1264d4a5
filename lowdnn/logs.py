"""Logs: where the events of a process are written, and the form of their lines.

``log_to`` adds the handler that a ``Config`` asks for to the logger ``lowdnn``. Equal configurations share one handler,
so that several handles write each event once. A line has these fields, then those of its event:

    time     in UTC, as in RFC 3339, to microseconds     event     what happened, in one word
    level    DEBUG, INFO, WARNING or ERROR               process   its number in the operating system
    area     the part of the library, of ``AREAS``       thread    its number in Python

As text, ``2026-01-31T12:00:00.000000Z INFO lowdnn.frontend plan_selected graph=... process=71 thread=140``: the time,
the level, the logger and the event stand without names, process and thread at the end. As JSON, one object with all of
them by name. Whatever a name or a message of other code contains, a line stays one line.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from lowdnn.config import LOG_FORMATS, Config, ConfigWarning, log_levels
from lowdnn.events import Event, event_line, quiet_handler
from lowdnn.one_line import one_line
from lowdnn.status import BadParamError

#: Above every level of the logging module.
_OFF = logging.CRITICAL + 1
_STREAMS = ("stdout", "stderr", "")


def log_to(config: Config) -> logging.Handler | None:
    """Adds the handler that ``config`` asks for to the ``lowdnn`` logger; each call needs a ``stop_logging``.

    Raises BadParamError for levels or a format that there are not.
    """
    levels = log_levels(config.log_level)
    if levels is None:
        raise BadParamError.at("Config.log_level", expected="levels as in LOWDNN_LOG_LEVEL", got=config.log_level)
    if config.log_format not in LOG_FORMATS:
        raise BadParamError.at("Config.log_format", expected=" or ".join(LOG_FORMATS), got=config.log_format)
    if set(levels.values()) == {"off"}:
        return None
    output = _Output.of(config)
    with _handlers_guarded() as root:
        for handler in root.handlers:
            kept = _output_of(handler)
            if kept is not None and kept.config == output.config:
                kept.users += 1
                return handler
        handler = _handler(config.log_file.replace("%p", str(os.getpid())))
        handler.setFormatter(JsonFormatter() if config.log_format == "json" else TextFormatter())
        handler.addFilter(output)
        output.raise_levels()
        root.addHandler(handler)
        return handler


def stop_logging(handler: logging.Handler) -> None:
    """Undoes one ``log_to`` that returned this handler; the last one removes and closes it."""
    with _handlers_guarded() as root:
        output = _output_of(handler)
        if output is not None:
            output.users -= 1
            if output.users > 0:
                return
            output.restore_levels()
        root.removeHandler(handler)
        handler.close()


class TextFormatter(logging.Formatter):
    """Writes ``time level logger event key=value ...``."""

    def format(self, record: logging.LogRecord) -> str:
        head = (_time(record), record.levelname, one_line(record.name))
        return " ".join((*head, event_line(_event(record), {**_own_fields(record), **_place(record)})))


class JsonFormatter(logging.Formatter):
    """Writes one JSON object a line. Numbers stay numbers where JSON has them, everything else is text."""

    def format(self, record: logging.LogRecord) -> str:
        fixed = {
            "time": _time(record),
            "level": record.levelname,
            "area": record.name.removeprefix("lowdnn."),
            "event": _event(record),
            **_place(record),
        }
        own = _own_fields(record)
        fields = {f"event_{key}" if key in fixed else key: _plain(value) for key, value in own.items()}
        return json.dumps({**fixed, **fields})


class _Output(logging.Filter):
    """The levels of a handler, by area, and how many ``log_to`` share it."""

    def __init__(self, config: tuple[str, str, str], levels: dict[str, int]) -> None:
        super().__init__()
        self.config = config
        self.users = 1
        self._levels = levels
        self._raised: list[tuple[logging.Logger, int, int]] = []

    @classmethod
    def of(cls, config: Config) -> _Output:
        """The output that ``config`` asks for, which ``log_to`` has checked."""
        names = log_levels(config.log_level) or {}
        numbers = {area: _OFF if name == "off" else getattr(logging, name.upper()) for area, name in names.items()}
        return cls((config.log_level, config.log_file, config.log_format), numbers)

    def filter(self, record: logging.LogRecord) -> bool:
        area = record.name.removeprefix("lowdnn.").partition(".")[0]
        return record.levelno >= self._levels.get(area, self._levels[""])

    def raise_levels(self) -> None:
        """Lets the loggers make the records that this output writes. A logger that makes more already is left alone."""
        for area, level in self._levels.items():
            logger = logging.getLogger(f"lowdnn.{area}" if area else "lowdnn")
            if level == _OFF or (logger.level != logging.NOTSET and logger.level <= level):
                continue
            if logger.level != logging.NOTSET or not area or logger.getEffectiveLevel() > level:
                self._raised.append((logger, logger.level, level))
                logger.setLevel(level)

    def restore_levels(self) -> None:
        for logger, before, own in self._raised:
            if logger.level == own:
                logger.setLevel(before)


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


@contextmanager
def _handlers_guarded() -> Iterator[logging.Logger]:
    """The logger ``lowdnn``, whose handlers no other thread changes meanwhile."""
    guard = quiet_handler()
    guard.acquire()
    try:
        yield logging.getLogger("lowdnn")
    finally:
        guard.release()


def _handler(path: str) -> logging.Handler:
    if path in _STREAMS:
        return logging.StreamHandler(sys.stdout if path == "stdout" else sys.stderr)
    try:
        return _LogFile(path, encoding="utf-8")
    except OSError as error:
        warnings.warn(f"LOWDNN_LOG_FILE: {error}; taking standard error", ConfigWarning, stacklevel=5)
        return logging.StreamHandler()


def _output_of(handler: logging.Handler) -> _Output | None:
    return next((one for one in handler.filters if isinstance(one, _Output)), None)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _event(record: logging.LogRecord) -> str:
    return record.msg.name if isinstance(record.msg, Event) else "message"


def _place(record: logging.LogRecord) -> dict[str, object]:
    return {"process": record.process, "thread": record.thread}


def _own_fields(record: logging.LogRecord) -> dict[str, object]:
    """The fields of the event; the text and the exception of a record of other code."""
    found: dict[str, object] = {"text": record.getMessage()}
    if isinstance(record.msg, Event):
        found = dict(record.msg.fields)
    if record.exc_info and record.exc_info[1] is not None:
        found["exception"] = repr(record.exc_info[1])
    return found


def _plain(value: object) -> object:
    is_number = isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))
    return value if is_number or value is None else str(value)
