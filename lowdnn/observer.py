"""The observer of this process: it is told of events and counts, and may ask which objects are in use.

Telemetry takes the place; nothing below it knows who observes. Executes are not told, so that they cost the same with
and without an observer; it may watch those of a loaded plan, which it is introduced to. Where nobody observes, an
event costs one comparison.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Protocol, TypeVar
from weakref import WeakSet

from lowdnn.forking import tell_after_fork

SubjectT = TypeVar("SubjectT")


class Observer(Protocol):
    """Its methods are called in the thread in which something happens. Errors in them are logged, and hurt nobody."""

    def happened(self, event: str, fields: Mapping[str, object]) -> None:
        """An event of ``events.emit``, at whatever level it is logged."""

    def counted(self, name: str, amount: int) -> None:
        """A count of ``events.Counters``."""

    def met(self, subject: object) -> None:
        """A new object that was introduced."""


def observe(observer: Observer | None) -> None:
    """Makes ``observer`` the one of this process, in place of another one; None for nobody."""
    _place().observer = observer


def happened(event: str, fields: Mapping[str, object]) -> None:
    """Tells the observer, if there is one, of an event."""
    observer = _place().observer
    if observer is not None:
        try:
            observer.happened(event, fields)
        except Exception as error:
            _failed(error)


def counted(name: str, amount: int = 1) -> None:
    """Tells the observer, if there is one, of a count."""
    observer = _place().observer
    if observer is not None:
        try:
            observer.counted(name, amount)
        except Exception as error:
            _failed(error)


def introduce(subject: object) -> None:
    """Makes an object known to observers, this one and later ones, for as long as it lives."""
    place = _place()
    with place.lock:
        place.subjects.add(subject)
    if place.observer is not None:
        try:
            place.observer.met(subject)
        except Exception as error:
            _failed(error)


def subjects(kind: type[SubjectT]) -> list[SubjectT]:
    """The living objects of a class that were introduced."""
    place = _place()
    with place.lock:
        return [subject for subject in place.subjects if isinstance(subject, kind)]


def start(options: str) -> None:
    """Turns telemetry on as LOWDNN_TELEMETRY says, unless somebody observes already; "" does nothing."""
    if options and _place().observer is None:
        import_module("lowdnn.telemetry.starting").start(options)


class _Place:
    """The observer, and the objects that were introduced."""

    def __init__(self) -> None:
        self.observer: Observer | None = None
        self.subjects: WeakSet[object] = WeakSet()
        self.lock = Lock()
        tell_after_fork(self)

    def after_fork(self) -> None:
        """Nobody observes the child until somebody asks for it there."""
        self.lock, self.observer = Lock(), None


@cache
def _place() -> _Place:
    return _Place()


def _failed(error: Exception) -> None:
    logging.getLogger("lowdnn.telemetry").warning("observer_failed reason=%r", error)
