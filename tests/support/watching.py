"""Watches a process while it reads documents: files opened, programs compiled, code run, time taken."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from lowdnn.codegen.parts import FunctorParts
from lowdnn.driver import nvrtc

ROOT = Path(__file__).resolve().parents[2]

#: Audit events that no document may cause.
_FORBIDDEN = re.compile(
    r"os\.(system|exec|posix_spawn|spawn|fork|remove|rename|link|symlink|putenv|chmod)|subprocess\.|socket\.|shutil\."
    r"|pickle\.|marshal\.|ctypes\.dlopen|code\.__new__|(compile|exec|import)$"
)
_PIECE = re.compile(r"(?=^#pragma once$)", re.MULTILINE)


class Overtime(BaseException):
    """A step took longer than it may; no handler of ordinary errors catches it."""


class Watch:
    """Counts what happens inside ``step``.

    opened: paths outside of lowdnn's own folders.  forbidden: other audit events.
    strange: generated texts that reached NVRTC and that ``codegen`` did not write.  compiled: programs in all.
    """

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.forbidden: list[str] = []
        self.strange: list[str] = []
        self.compiled = 0
        self._folders = tuple(str(folder) for folder in (ROOT / "lowdnn", ROOT / "ptx"))
        self._written: set[str] = set()
        self._is_on = False
        sys.addaudithook(self._heard)

    @contextmanager
    def installed(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """Records the texts that codegen writes and those that NVRTC gets."""
        write, compile_program = FunctorParts.text, nvrtc.compile_program

        def written(parts: Any, name: str) -> str:
            text = write(parts, name)
            self._written.add(text.strip())
            return text

        def compiled(source: str, *, headers: Mapping[str, str], options: Sequence[str], **rest: Any) -> nvrtc.Compiled:
            self.compiled += 1
            pieces = [piece.strip() for piece in _PIECE.split(headers.get("generated.cuh", ""))]
            self.strange += [piece for piece in pieces if piece and piece not in self._written]
            is_on, self._is_on = self._is_on, False
            try:
                return compile_program(source, headers=headers, options=options, **rest)
            finally:
                self._is_on = is_on

        patch.setattr(FunctorParts, "text", written)
        patch.setattr(nvrtc, "compile_program", compiled)
        yield

    @contextmanager
    def step(self, seconds: float) -> Iterator[None]:
        """One step, which raises Overtime after so many seconds."""
        previous = signal.signal(signal.SIGALRM, _stop)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_on:
            return
        if event == "open":
            path = str(arguments[0])
            if not path.startswith(self._folders):
                self.opened.append(path)
        elif _FORBIDDEN.match(event):
            self.forbidden.append(f"{event} {arguments!r}"[:200])


def _stop(_: int, frame: FrameType | None) -> None:
    raise Overtime
