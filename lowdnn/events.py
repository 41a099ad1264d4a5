"""Events: one log line each, with stable ``key=value`` fields, and counters.

Lines go to ``logging.getLogger("lowdnn.<area>")`` and are written before the thing that they announce, so that the last
line names what crashed. The application decides where they go; ``logs.log_to`` is the shortcut behind LOWDNN_LOG_LEVEL.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from threading import Lock

from lowdnn.config import Config
from lowdnn.forking import tell_after_fork
from lowdnn.observer import counted, happened
from lowdnn.one_line import one_line

#: Opens an annotated range of a name, with a text as its payload.
Annotate = Callable[[str, str], AbstractContextManager[object]]
#: Gives further fields of an event that is about to be written, such as the ids of a trace.
Fields = Callable[[], Mapping[str, object]]


def event_logger(area: str) -> logging.Logger:
    """The logger ``lowdnn.<area>``; silent until the application, or ``log_to``, adds a handler."""
    logger = logging.getLogger(f"lowdnn.{area}")
    if not logging.getLogger("lowdnn").handlers:
        quiet_handler()
    return logger


class QuietHandler(logging.Handler):
    """Writes nothing: with it, Python does not write the events of an application that has no handlers.

    Its lock, which ``logging`` makes anew in a child of fork, guards the handlers of the logger ``lowdnn``.
    """

    def emit(self, record: logging.LogRecord) -> None:
        pass


def quiet_handler() -> QuietHandler:
    """The quiet handler of the logger ``lowdnn``; the same one for all threads."""
    root = logging.getLogger("lowdnn")
    if not any(isinstance(handler, QuietHandler) for handler in root.handlers):
        root.addHandler(QuietHandler())
    return next(handler for handler in root.handlers if isinstance(handler, QuietHandler))


@dataclass(frozen=True)
class Event:
    """The message of a log record: a name and its fields. As text it is ``event_line``."""

    name: str
    fields: Mapping[str, object]

    def __str__(self) -> str:
        return event_line(self.name, self.fields)


def event_line(event: str, fields: Mapping[str, object]) -> str:
    """One line, ``event key=value ...``. Empty values and those with blanks or quotes are quoted; control characters
    and line separators are escaped."""
    return " ".join([event, *(f"{key}={_quoted(str(value))}" for key, value in fields.items())])


def emit(logger: logging.Logger, level: int, event: str, fields: Mapping[str, object]) -> None:
    """Logs one event, and tells the observer; costs two comparisons when the level is off and nobody observes."""
    happened(event, fields)
    if logger.isEnabledFor(level):
        texts = {name: str(value) for name, value in fields.items() if isinstance(value, BaseException)}
        # A handler may keep its records for long, and an error keeps the objects of all frames that it passed.
        logger.log(level, Event(event, {**fields, **texts, **_added_fields()}), stacklevel=2)


def add_fields(fields: Fields) -> None:
    """Every event has these fields behind its own from now on: ``fields`` is called in the thread that writes it.

    The logger ``lowdnn`` keeps the function, until ``remove_fields``.
    """
    logging.getLogger("lowdnn").addFilter(_AddedFields(fields))


def remove_fields(fields: Fields) -> None:
    """Undoes ``add_fields``; without it nothing happens."""
    root = logging.getLogger("lowdnn")
    for one in _field_sources(root):
        if one.fields == fields:
            root.removeFilter(one)


class _AddedFields(logging.Filter):
    """Lets every record pass. It stands among the filters because the logger is what the process shares."""

    def __init__(self, fields: Fields) -> None:
        super().__init__()
        self.fields = fields

    def filter(self, record: logging.LogRecord) -> bool:
        return True


def _added_fields() -> dict[str, object]:
    added: dict[str, object] = {}
    for one in _field_sources(logging.getLogger("lowdnn")):
        try:
            added.update(one.fields())
        except Exception as error:  # a tracer at fault must not break the call that tells an event
            added["fields_failed"] = repr(error)
    return added


def _field_sources(root: logging.Logger) -> list[_AddedFields]:
    return [one for one in root.filters if isinstance(one, _AddedFields)]


def range_annotator(config: Config) -> Annotate | None:
    """A function that opens an NVTX range in the domain ``lowdnn``, whose payload are the bytes of a text; None unless
    asked for and the package ``nvtx`` is there."""
    if not config.nvtx:
        return None
    try:
        nvtx = import_module("nvtx")
    except ImportError:
        emit(event_logger("events"), logging.WARNING, "nvtx_missing", {"hint": "pip install nvtx"})
        return None
    return lambda name, payload: nvtx.annotate(message=name, domain="lowdnn", payload=payload.encode() or None)


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
        counted(name, amount)

    def snapshot(self) -> dict[str, int]:
        """The counts now, by name."""
        with self._lock:
            return dict(sorted(self._counts.items()))


def _quoted(text: str) -> str:
    if text and text.isprintable() and not any(char in ' "=' for char in text):
        return text
    return '"' + one_line(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'
