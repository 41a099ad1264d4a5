"""Python programs on lowdnn's library, with the processes that they start: ``python -m lowdnn.capi program.py``."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from lowdnn.capi.library import LIBRARY_NAME, write_library
from lowdnn.capi.stubs.starting import libpython
from lowdnn.config import with_first

#: The folder of lowdnn's sitecustomize.
_STARTUP = Path(__file__).resolve().parent / "startup"


def run(arguments: Sequence[str]) -> int:
    """Runs Python with ``arguments`` on lowdnn's library. Returns its exit code, or 128 and the signal that ended it.

    Programs in C among the child processes are connected at their first call, too, and so is a Python that ignores
    PYTHONPATH.

    Signals that end this process are passed on; those of the terminal reach the program anyway.
    """
    with TemporaryDirectory(prefix="lowdnn-") as folder:
        library = Path(folder) / LIBRARY_NAME
        write_library(library, python=libpython())
        program = subprocess.Popen([sys.executable, *arguments], env=environment_on(library))

        def pass_on(number: int, _: FrameType | None) -> None:
            program.send_signal(number)

        handlers = {signal.SIGINT: _wait_on, signal.SIGQUIT: _wait_on, signal.SIGTERM: pass_on, signal.SIGHUP: pass_on}
        earlier = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            code = program.wait()
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def environment_on(library: Path, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process on ``library``: the loader loads it first, and Python connects it to lowdnn.

    environment: the environment that it is made from; this process's own by default.
    """
    return with_first({"LD_PRELOAD": str(library), "PYTHONPATH": str(_STARTUP)}, environment)


def _wait_on(number: int, frame: FrameType | None) -> None:
    """Waits for the program; a signal is passed on, and the program decides what it means."""
