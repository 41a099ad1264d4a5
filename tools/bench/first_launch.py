"""Time from the start of a process to the first launch of ``lowdnn demo``, and where it goes.

    python -m tools.bench.first_launch [--device emulated] [--repeats N] [--cold | --cache-dir DIR] [--cpu]

Each repeat is a new process with the disk cache as the one before left it (``--cold``: an empty one). A row is what one
part takes without the parts inside of it, in milliseconds, in the repeat that took least in all.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from typing import Any

_ROWS = (
    "python",
    "numpy",
    "lowdnn modules",
    "other modules",
    "handle",
    "data and memory",
    "graphs and plans",
    "sources",
    "store and cache",
    "module load",
    "function",
    "rest of load",
    "first launch",
)


class _FirstLaunchError(BaseException):
    """The first launch is through."""


class _Clock:
    """``seconds`` by part: time counts for the innermost part only."""

    def __init__(self, started: float | None) -> None:
        """``started``: when the process began, by ``time.monotonic``; None to count processor time."""
        self._now = time.process_time if started is None else time.monotonic
        self._last = self._now()
        self.seconds = {"python": self._last - (started or 0.0)}
        self._inside: list[str] = []

    def step(self, opens: str = "") -> None:
        """Ends the innermost part, or opens one inside of it."""
        now = self._now()
        part = self._inside[-1] if self._inside else "other modules"
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now
        if opens:
            self._inside.append(opens)
        else:
            self._inside.pop()

    def timed(self, part: str | Callable[..., str], function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, whose time counts for ``part``, or for what ``part`` makes of its arguments."""

        @functools.wraps(function)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.step(part if isinstance(part, str) else part(*arguments))
            try:
                return function(*arguments, **options)
            finally:
                self.step()

        return wrapped

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Times ``owner.name``."""
        setattr(owner, name, self.timed(part, getattr(owner, name)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "emulated"), default="emulated")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    parser.add_argument("--cold", action="store_true", help="with an empty disk cache each time")
    parser.add_argument("--cache-dir", metavar="DIR", help="the disk cache (default: a new one)")
    parser.add_argument("--cpu", action="store_true", help="processor time, for a machine that others use too")
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        print(json.dumps(_measure(None if arguments.cpu else arguments.child, arguments.device)))
        return
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.cold:
            _run(arguments, arguments.cache_dir or folder)
        runs = [
            _run(arguments, f"{folder}/{number}" if arguments.cold else arguments.cache_dir or folder)
            for number in range(arguments.repeats)
        ]
    best = min(runs, key=lambda run: sum(run.values()))
    for row in _ROWS:
        print(f"{row:18s} {best.get(row, 0.0) * 1e3:8.1f} ms")
    print(f"{'in all':18s} {sum(best.values()) * 1e3:8.1f} ms")


def _run(arguments: argparse.Namespace, cache: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tools.bench.first_launch", "--device", arguments.device]
    command += ["--child", repr(time.monotonic()), *(["--cpu"] if arguments.cpu else [])]
    environment = {**os.environ, "LOWDNN_CACHE_DIR": cache}
    found = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(found.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def _measure(started: float | None, device: str) -> dict[str, float]:
    clock = _Clock(started)
    for loader in (SourceFileLoader, ExtensionFileLoader):
        loader.exec_module = clock.timed(_owner_of, loader.exec_module)  # type: ignore[method-assign]
    from lowdnn.cli import demo
    from lowdnn.cli.demo_arguments import add_demo_arguments

    parser = argparse.ArgumentParser()
    add_demo_arguments(parser)
    _watch(clock, device)
    sys.stdout, printed = open(os.devnull, "w"), sys.stdout  # noqa: SIM115
    try:
        demo.demo(parser.parse_args(["--device", device, "--steps", "1"]))
    except _FirstLaunchError:
        sys.stdout = printed
    return clock.seconds


def _owner_of(_: object, module: Any) -> str:
    owner = module.__name__.partition(".")[0]
    return f"{owner} modules" if owner == "lowdnn" else owner if owner == "numpy" else "other modules"


def _watch(clock: _Clock, device: str) -> None:
    from lowdnn.backend.handle import Handle
    from lowdnn.cli import demo
    from lowdnn.frontend.python_graph import pygraph
    from lowdnn.runtime.cache import DiskCache
    from lowdnn.runtime.module_store import ModuleStore
    from lowdnn.runtime.runtime import Runtime
    from lowdnn.runtime.sources import SourceTree

    driver: Any = import_module("lowdnn.driver." + ("cuda" if device == "cuda" else "emulated.driver"))
    opened = driver.CudaDriver if device == "cuda" else driver.EmulatedDriver
    clock.watch(demo, "demo", "data and memory")
    clock.watch(Handle, "open", "handle")
    clock.watch(pygraph, "build", "graphs and plans")
    clock.watch(Runtime, "load", "rest of load")
    clock.watch(SourceTree, "read", "sources")
    for owner, name in ((ModuleStore, "get"), (ModuleStore, "installed"), (DiskCache, "get"), (DiskCache, "put")):
        clock.watch(owner, name, "store and cache")
    clock.watch(opened, "module_load_data", "module load")
    clock.watch(opened, "module_get_function", "function")
    prepare = opened.prepare_launch

    def prepared(*arguments: Any) -> Callable[[int], None]:
        launch = clock.timed("first launch", prepare(*arguments))

        def first(stream: int) -> None:
            launch(stream)
            raise _FirstLaunchError

        return first

    opened.prepare_launch = prepared


if __name__ == "__main__":
    main()
