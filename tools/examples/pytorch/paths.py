"""One training on several paths, each in a process of its own, with step times and losses side by side.

    native    PyTorch as it is
    lowdnn    ``lowdnn.torch.enable()``
    library   lowdnn's C library in the place of cuDNN; it needs a GPU

Without a GPU the path ``lowdnn`` runs on the emulated device, with CPU tensors.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import torch

import lowdnn.torch

PATHS = ("native", "lowdnn", "library")


@dataclass
class Steps:
    """The steps of a training.  losses, ms: one for each step.  notes: lines about the run."""

    losses: list[float] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Times a step with all its work on the device."""
        begin = time.perf_counter()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ms.append(1e3 * (time.perf_counter() - begin))


def arguments(text: str, **more: int) -> argparse.ArgumentParser:
    """The options of every example. more: whole numbers of one, with their defaults."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=list(PATHS))
    parser.add_argument("--only", choices=PATHS, help="train on this path here, and print what came of it as JSON")
    for name, default in more.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser


def compare(module: str, given: argparse.Namespace, options: Sequence[str]) -> int:
    """Runs ``module`` once for each path and prints a table; 1 where one of them failed."""
    runs: dict[str, Steps] = {}
    failed = False
    for path in given.paths:
        if path == "library" and not torch.cuda.is_available():
            print("library: not run, it needs a GPU")
            continue
        launcher = ["-m", "lowdnn.capi"] if path == "library" else []
        command = [sys.executable, *launcher, "-m", module, "--only", path, *options]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{path}: failed\n{done.stderr[-2000:]}")
            failed = True
        else:
            runs[path] = Steps(**json.loads(done.stdout.splitlines()[-1]))
    for line in table(runs):
        print(line)
    return 1 if failed else 0


def train_here(path: str, train: Callable[[], Steps]) -> None:
    """Trains on a path in this process, and prints the steps as one line of JSON."""
    print(json.dumps(asdict(on_path(path, train))))


def on_path(path: str, train: Callable[[], Steps]) -> Steps:
    if path != "lowdnn":
        return train()
    with lowdnn.torch.enable("cuda" if torch.cuda.is_available() else "emulated"):
        steps = train()
    ran = sum(found.calls for found in lowdnn.torch.counts() if not found.reason)
    steps.notes.append(f"{ran} of {sum(found.calls for found in lowdnn.torch.counts())} calls ran on lowdnn")
    return steps


def table(runs: dict[str, Steps]) -> Iterator[str]:
    """A line for each step with the losses of all paths, then the median of the later steps' times, and notes."""
    yield "step    " + "".join(f"{path:>12}" for path in runs)
    for step in range(max((len(run.losses) for run in runs.values()), default=0)):
        yield f"{step:<8}" + "".join(f"{run.losses[step]:>12.5f}" for run in runs.values())
    yield "ms      " + "".join(f"{statistics.median(run.ms[len(run.ms) // 2 :]):>12.2f}" for run in runs.values())
    for path, run in runs.items():
        yield from (f"{path}: {note}" for note in run.notes)


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
