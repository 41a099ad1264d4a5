"""``lowdnn demo``: trains a network on handwritten digits, and tests it on digits that it has not seen.

Several devices train together: each computes its part of every batch (``distributed.split``).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from lowdnn.backend import Handle
from lowdnn.cli import digits
from lowdnn.cli.demo_ranks import check_devices, on_ranks
from lowdnn.cli.options import check_ranges
from lowdnn.cli.training.batches import Batches
from lowdnn.cli.training.captured_step import captured_step
from lowdnn.cli.training.checkpoint import Checkpoint
from lowdnn.cli.training.inference import accuracy
from lowdnn.cli.training.network import Network, initial_parameters
from lowdnn.cli.training.session import Session
from lowdnn.cli.training.sgd import learning_rate
from lowdnn.distributed.split import Split
from lowdnn.enums import DataType
from lowdnn.runtime.shared_files import check_place
from lowdnn.status import BadParamError

_BATCH = 64
_STEPS_PER_LINE = 10
#: Digits of a loss: as many as tell any two values of fp32 apart.
_DIGITS = 9
#: Most steps of a training, since the images of all steps are in memory.
_MAX_STEPS = 10_000
_WANTED_ACCURACY = 0.97


def demo(arguments: argparse.Namespace) -> int:
    """Runs the demo on ``arguments.devices`` devices; 0 if the network names enough of the held-out digits, else 1.

    Raises BadParamError for a number of steps or a seed that is out of range, for devices that cannot share a batch,
    and for a checkpoint of another training.
    """
    check_ranges("demo", arguments, {"steps": (1, _MAX_STEPS), "seed": (0, 2**63 - 1), "until": (1, arguments.steps)})
    check_devices(arguments, _BATCH)
    if arguments.checkpoint is not None:
        try:
            check_place(arguments.checkpoint)
        except (OSError, ValueError) as error:  # ValueError: the name is no path
            rule = "a file that may be written"
            raise BadParamError.at("demo.checkpoint", expected=rule, got=error) from None
    return on_ranks(arguments, lambda handle, split: _Demo(arguments, handle, split).run())


class _Demo:
    """The demo on one rank, of which the first one reports."""

    def __init__(self, arguments: argparse.Namespace, handle: Handle, split: Split) -> None:
        self._arguments = arguments
        self._handle = handle
        self._split = split
        self._clock = _Stopwatch()

    def run(self) -> int:
        arguments, clock = self._arguments, self._clock
        activation_type = DataType.HALF if arguments.mixed_precision else DataType.FLOAT
        rng = np.random.default_rng(arguments.seed)
        training, held_out = digits.load()
        self._introduce(training, held_out)
        with Session(self._handle, activation_type, split=self._split) as session:
            with clock.phase("data"):
                batches = Batches(session, training, _BATCH, arguments.steps, rng)
            with clock.phase("plans and kernels"):
                network = Network(session, _BATCH, initial_parameters(rng))
            self._train(session, network, batches)
            # All ranks have the same network.
            if self._split.rank:
                return 0
            with clock.phase("test"):
                share = accuracy(session, network, held_out)
            _print_engines(session)
        return self._judge(share, held_out)

    def _say(self, text: str) -> None:
        if self._split.rank == 0:
            print(text, flush=True)

    def _introduce(self, training: digits.Digits, held_out: digits.Digits) -> None:
        arguments, split, device = self._arguments, self._split, self._handle.runtime
        name = device.driver.device_name(device.context.device)
        precision = "fp16 with fp32 masters and a dynamic loss scale" if arguments.mixed_precision else "fp32"
        parts = f", each in {split.parts} parts" if split.parts > 1 else ""
        self._say(f"device     {f'{split.size} x ' if split.size > 1 else ''}{name}, {self._handle.arch.name}")
        self._say(
            f"data       {training.count} handwritten digits; every fifth of the file, {held_out.count}, is held out"
        )
        captured = ", each one CUDA graph" if arguments.captured else ""
        steps = f"{arguments.steps} steps of {_BATCH} images{parts}{captured}"
        self._say(f"training   {steps}, {precision}, seed {arguments.seed}\n")

    def _train(self, session: Session, network: Network, batches: Batches) -> None:
        arguments = self._arguments
        checkpoint = Checkpoint(arguments.checkpoint, session, network, {"seed": arguments.seed, "batch": _BATCH})
        steps = arguments.steps
        until = steps if arguments.until is None else arguments.until
        first = checkpoint.load()
        with self._steps(session, network) as train_step:
            for step in range(first, until):
                batches.load(step, network)
                network.set_rate(learning_rate(step, steps))
                train_step()
                if (step + 1) % _STEPS_PER_LINE == 0 or step + 1 == until:
                    elapsed_s = self._clock.elapsed_s
                    self._say(f"step {step + 1:4d}   loss {network.loss():.{_DIGITS}g}   {elapsed_s:5.1f} s")
                    checkpoint.save(step + 1)

    @contextmanager
    def _steps(self, session: Session, network: Network) -> Iterator[Callable[[], None]]:
        """``network.train_step``, which waits for each phase to time it, or for the graph of the whole step."""
        phases = {"forward": network.forward, "backward": network.backward, "update": network.update}
        with ExitStack() as stack:
            if self._arguments.captured:
                with self._clock.phase("capture"):
                    phases = {"replay": stack.enter_context(captured_step(session, network))}

            def train_step() -> None:
                for name, run in phases.items():
                    with self._clock.phase(name):
                        run()
                        session.synchronize()

            yield train_step

    def _judge(self, share: float, held_out: digits.Digits) -> int:
        self._say("\n" + "\n".join(f"{name:18s} {seconds:6.2f} s" for name, seconds in self._clock.seconds.items()))
        verdict = "" if share >= _WANTED_ACCURACY else f", expected at least {_WANTED_ACCURACY:.0%}"
        self._say(f"\ntest accuracy {share:.1%} ({round(share * held_out.count)} of {held_out.count}){verdict}")
        return 0 if share >= _WANTED_ACCURACY else 1


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
