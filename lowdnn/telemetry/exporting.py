"""Exporters, and the thread that calls them. Whatever an exporter raises is logged, and reaches no other call."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from threading import Event, Thread
from typing import Protocol

from lowdnn.events import emit, event_logger
from lowdnn.telemetry.registry import Registry
from lowdnn.telemetry.samples import Family


class Exporter(Protocol):
    """Writes measures somewhere. ``lowdnn guide telemetry`` lists those there are; a program may bring its own."""

    def open(self, registry: Registry) -> None:
        """Called by ``telemetry.enable``, which raises what this raises."""

    def export(self, families: Sequence[Family]) -> None:
        """Called at intervals, in a thread of telemetry's own, and once at the end."""

    def close(self) -> None:
        """Called by ``telemetry.disable``."""

    def after_fork(self) -> None:
        """Called in a child of fork, where telemetry is off: lets go of files and sockets, and tells nobody."""


class ExportThread:
    """Calls exporters every ``interval_s`` seconds."""

    def __init__(self, registry: Registry, exporters: Sequence[Exporter], interval_s: float) -> None:
        self._registry = registry
        self._exporters = exporters
        self._interval_s = interval_s
        self._is_stopped = Event()
        self._told: set[str] = set()
        self._thread = Thread(target=self._run, name="lowdnn telemetry", daemon=True)

    def start(self) -> None:
        """Opens the exporters, and begins. Raises what they raise, with none of them open."""
        opened: list[Exporter] = []
        try:
            for exporter in self._exporters:
                exporter.open(self._registry)
                opened.append(exporter)
        except BaseException:
            for exporter in opened:
                self._close(exporter)
            raise
        self._thread.start()

    def stop(self) -> None:
        """Exports once more, and closes the exporters."""
        self._is_stopped.set()
        self._thread.join()
        self._export()
        for exporter in self._exporters:
            self._close(exporter)

    def after_fork(self) -> None:
        """Lets go of what the child has inherited; the thread lives on in the parent alone."""
        for exporter in self._exporters:
            try:
                exporter.after_fork()
            except Exception as error:
                self._failed(exporter, error)

    def _run(self) -> None:
        while not self._is_stopped.wait(self._interval_s):
            self._export()

    def _export(self) -> None:
        families = self._registry.collect()
        for exporter in self._exporters:
            try:
                exporter.export(families)
            except Exception as error:
                self._failed(exporter, error)

    def _close(self, exporter: Exporter) -> None:
        try:
            exporter.close()
        except Exception as error:
            self._failed(exporter, error)

    def _failed(self, exporter: Exporter, error: Exception) -> None:
        """Logs a failure; each kind once, since an exporter may fail as long as a server is away."""
        fields = {"exporter": type(exporter).__name__, "reason": repr(error)}
        if str(fields) not in self._told:
            self._told.add(str(fields))
            emit(event_logger("telemetry"), logging.WARNING, "export_failed", fields)
