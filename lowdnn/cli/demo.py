"""``lowdnn demo``: trains a network on handwritten digits, and tests it on digits that it has not seen."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from lowdnn.backend import Handle
from lowdnn.cli import digits
from lowdnn.cli.training.batches import Batches
from lowdnn.cli.training.inference import accuracy
from lowdnn.cli.training.network import Network, initial_parameters
from lowdnn.cli.training.session import Session
from lowdnn.cli.training.sgd import learning_rate
from lowdnn.enums import DataType
from lowdnn.status import BadParamError

_BATCH = 64
_STEPS_PER_LINE = 10
#: Most steps of a training, since the images of all steps are in memory.
_MAX_STEPS = 10_000
_WANTED_ACCURACY = 0.97


def demo(arguments: argparse.Namespace) -> int:
    """Runs the demo on ``arguments.device``; 0 if the network names enough of the held-out digits, otherwise 1.

    Raises BadParamError for a number of steps or a seed that is out of range.
    """
    for argument, least, most in (("steps", 1, _MAX_STEPS), ("seed", 0, 2**63 - 1)):
        value = getattr(arguments, argument)
        if not least <= value <= most:
            raise BadParamError.at(f"demo.{argument}", expected=f"{least} to {most}", got=value)
    clock, rng = _Stopwatch(), np.random.default_rng(arguments.seed)
    training, held_out = digits.load()
    activation_type = DataType.HALF if arguments.mixed_precision else DataType.FLOAT
    with Handle.open(arguments.device) as handle, Session(handle, activation_type) as session:
        print(f"device     {handle.runtime.driver.device_name(0)}, {handle.arch.name}")
        print(f"data       {training.count} handwritten digits; every fifth of the file, {held_out.count}, is held out")
        precision = "fp16 with fp32 masters and a dynamic loss scale" if arguments.mixed_precision else "fp32"
        print(f"training   {arguments.steps} steps of {_BATCH} images, {precision}, seed {arguments.seed}\n")
        with clock.phase("data"):
            batches = Batches(session, training, _BATCH, arguments.steps, rng)
        with clock.phase("plans and kernels"):
            network = Network(session, _BATCH, initial_parameters(rng))
        _train(session, network, batches, clock, arguments.steps)
        with clock.phase("test"):
            share = accuracy(session, network, held_out)
        _print_engines(session)
    print("\n" + "\n".join(f"{name:18s} {seconds:6.2f} s" for name, seconds in clock.seconds.items()))
    verdict = "" if share >= _WANTED_ACCURACY else f", expected at least {_WANTED_ACCURACY:.0%}"
    print(f"\ntest accuracy {share:.1%} ({round(share * held_out.count)} of {held_out.count}){verdict}")
    return 0 if share >= _WANTED_ACCURACY else 1


def _train(session: Session, network: Network, batches: Batches, clock: _Stopwatch, steps: int) -> None:
    """As ``network.train_step``, but waits for each phase, to time it."""
    for step in range(steps):
        batches.load(step, network)
        with clock.phase("forward"):
            network.forward()
            session.synchronize()
        with clock.phase("backward"):
            network.backward()
            session.synchronize()
        with clock.phase("update"):
            network.update(learning_rate(step, steps))
            session.synchronize()
        if (step + 1) % _STEPS_PER_LINE == 0 or step + 1 == steps:
            print(f"step {step + 1:4d}   loss {network.loss():.4f}   {clock.elapsed_s:5.1f} s", flush=True)


def _print_engines(session: Session) -> None:
    print("\ngraph                      engines")
    for graph in session.graphs:
        print(f"{graph.name:26s} {', '.join(graph.engines)}")


class _Stopwatch:
    """``seconds``: wall time by the name of the phase, over all its runs."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._start = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Since the stopwatch was made."""
        return time.perf_counter() - self._start

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
