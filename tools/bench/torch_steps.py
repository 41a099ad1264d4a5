"""Step times of training on one GPU: PyTorch's own kernels against ``lowdnn.torch.enable()``, in turns.

    python -m tools.bench.torch_steps [--only NAME...] [--mode eager|compile|graph] [--batch N] [--seconds S]
        [--rounds N] [--tune] [--profile] [--out FOLDER] [--tiny --device cpu]

Networks train in bf16 autocast and channels last, by SGD with momentum. PyTorch's path has ``cudnn.benchmark``;
with ``--tune`` lowdnn's has it too, and tunes each new graph for two seconds. ``--mode graph`` replays a step from a
CUDA graph, for batches so small that the host is slower than the GPU. For each network the output has:

- medians of ms a step on both paths, their ratio, spreads (max - min over the median), and the ms until the host has
  issued a step, which is the bound where it comes near to the whole;
- the losses of the first four steps: natively, natively once more, and on lowdnn;
- the number of calls that lowdnn could take in four steps, and those that ran natively, with the reasons.

Files of the folder are NAME_MODE_counts.txt, with ``--profile`` NAME_MODE_PATH.txt with the kernels' times, and
NAME_MODE_error.txt where a network failed; the exit code is 1 then. ``--tiny --device cpu`` tries it without a
GPU: all but CUDA graphs, and LSTMs where PyTorch has none in bf16 for the CPU. The networks of images need torchvision.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lowdnn.torch
from lowdnn.torch.counts import PathCount, table
from tools.bench.torch_models import LmBlock
from tools.bench.torch_workloads import WORKLOADS, Sizes, Workload

PATHS = ("native", "lowdnn")
_LOSSES = 4
_MIN_ROUNDS = 3
#: Seconds below which no further network is begun.
_MIN_SECONDS = 3.0


def main() -> int:
    given = _parse()
    device = torch.device("cuda", 0) if given.device == "cuda" else torch.device("cpu")
    sizes = Sizes(given.batch, given.tiny, device)
    given.out.mkdir(parents=True, exist_ok=True)
    card = torch.cuda.get_device_name(device) if given.device == "cuda" else "emulated device"
    print(f"{card}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, mode {given.mode}")
    end, failed = time.monotonic() + given.seconds, False
    for number, name in enumerate(given.only):
        left = end - time.monotonic()
        if left < _MIN_SECONDS:
            print(f"{name}: not run, no time is left", flush=True)
            continue
        try:
            _report(name, sizes, given, time.monotonic() + left / (len(given.only) - number))
        except Exception as error:
            failed = True
            print(f"{name}: failed, {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}", flush=True)
            (given.out / f"{name}_{given.mode}_error.txt").write_text(traceback.format_exc())
        if given.mode == "compile":
            torch.compiler.reset()
        if given.device == "cuda":
            torch.cuda.empty_cache()
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS), metavar="NAME",
                        help=f"networks out of {', '.join(WORKLOADS)}")  # fmt: skip
    parser.add_argument("--mode", choices=("eager", "compile", "graph"), default="eager")
    parser.add_argument("--batch", type=int, default=64, help="images a step; 64")
    parser.add_argument("--seconds", type=float, default=110, help="for all networks, which share them evenly; 110")
    parser.add_argument("--rounds", type=int, default=15, help="at most, three at least; 15")
    parser.add_argument("--tune", action="store_true", help="lowdnn tunes each new graph too")
    parser.add_argument("--profile", action="store_true", help="write the kernels' times of both paths")
    parser.add_argument(
        "--out", metavar="FOLDER", type=Path, default=Path("build/torch_steps"), help="of files; build/torch_steps"
    )
    parser.add_argument("--tiny", action="store_true", help="networks and inputs for a trial")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    given = parser.parse_args()
    if given.batch < 1 or given.rounds < _MIN_ROUNDS:
        parser.error(f"expected a batch of at least 1 and at least {_MIN_ROUNDS} rounds, got "
                     f"--batch {given.batch} --rounds {given.rounds}")  # fmt: skip
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("expected a GPU that PyTorch can use, got none; --tiny --device cpu needs none")
    if given.device == "cpu" and given.mode == "graph":
        parser.error("expected --device cuda for CUDA graphs, got --device cpu")
    return given


class Trainer:
    """Steps of a workload, which ``restart`` begins anew from the same weights."""

    def __init__(self, workload: Workload, device: torch.device, *, is_compiled: bool) -> None:
        self.workload, self.device, self.model = workload, device, workload.model
        self._state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self._run = torch.compile(self.model) if is_compiled else self.model
        self.restart()

    def restart(self) -> None:
        self.model.load_state_dict(self._state)
        self.model.zero_grad(set_to_none=True)
        self._optimizer = torch.optim.SGD(self.model.parameters(), 1e-3, momentum=0.9)

    def step(self) -> Tensor:
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16):
            out = self._run(*self.workload.inputs)
        loss = self.workload.loss_of(out)
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def losses(self) -> list[float]:
        """The losses of the first steps."""
        self.restart()
        return [round(float(self.step()), 5) for _ in range(_LOSSES)]

    @contextmanager
    def on(self, path: str, *, is_tuned: bool) -> Iterator[None]:
        """Steps inside run on a path. is_tuned: new graphs are tuned on lowdnn's path too."""
        is_lowdnn, flag = path == "lowdnn", torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = is_tuned or not is_lowdnn
        self._call_ops(is_lowdnn)
        kind = "cuda" if self.device.type == "cuda" else "emulated"
        try:
            with lowdnn.torch.enable(kind) if is_lowdnn else nullcontext():
                yield
        finally:
            self._call_ops(False)
            torch.backends.cudnn.benchmark = flag

    def _call_ops(self, do: bool) -> None:
        for part in self.model.modules():
            if isinstance(part, LmBlock):
                part.calls_ops = do and part.has_ops


@dataclass(frozen=True)
class StepTimes:
    """Times of the rounds on one path, in ms a step: whole steps, and until the host has issued them."""

    whole: list[float]
    issued: list[float]

    @property
    def ms(self) -> float:
        return statistics.median(self.whole)

    @property
    def issued_ms(self) -> float:
        return statistics.median(self.issued)

    @property
    def spread_percent(self) -> float:
        return 100 * (max(self.whole) - min(self.whole)) / self.ms


def _report(name: str, sizes: Sizes, given: argparse.Namespace, end: float) -> None:
    """Trains, measures until ``end`` (of ``time.monotonic``), and prints the results of one network."""
    torch.manual_seed(0)
    trainer = Trainer(WORKLOADS[name](sizes), sizes.device, is_compiled=given.mode == "compile")
    before = lowdnn.torch.counts()
    losses, first_s = {}, {}
    for run, path in (("native", "native"), ("again", "native"), ("lowdnn", "lowdnn")):
        begin = time.monotonic()
        with trainer.on(path, is_tuned=given.tune):
            losses[run] = trainer.losses()
        first_s[run] = time.monotonic() - begin
    calls = _risen(before, lowdnn.torch.counts())
    file = f"{name}_{given.mode}"
    (given.out / f"{file}_counts.txt").write_text(f"{_LOSSES} steps\n{table(calls)}\n")
    steps = {path: _captured(trainer, path, given) if given.mode == "graph" else trainer.step for path in PATHS}
    if given.profile:
        for path, text in _profiles(trainer, steps, given):
            (given.out / f"{file}_{path}.txt").write_text(text)
    times = _measured(trainer, steps, given, end)
    print(f"{name:<16}{trainer.workload.text:<26}{_times_text(times)}")
    print("    losses: " + ", ".join(f"{run} {values}" for run, values in losses.items()))
    native = [path for path in calls if path.reason]
    print(
        f"    {sum(path.calls for path in calls)} calls in {_LOSSES} steps, {sum(path.calls for path in native)} "
        f"of them native; these steps took {first_s['native']:.1f} s natively, {first_s['lowdnn']:.1f} s on lowdnn"
    )
    for path in sorted(native, key=lambda path: -path.calls):
        print(f"    {path.calls:>7} {path.operation}: {path.reason[:110]}")
    sys.stdout.flush()


def _times_text(times: dict[str, StepTimes]) -> str:
    native, own = times["native"], times["lowdnn"]
    return (
        f"native {native.ms:.2f} ms, lowdnn {own.ms:.2f} ms, ratio {native.ms / own.ms:.3f}, "
        f"spread {native.spread_percent:.0f}/{own.spread_percent:.0f} %, "
        f"issued in {native.issued_ms:.2f}/{own.issued_ms:.2f} ms, {len(own.whole)} rounds"
    )


def _risen(before: tuple[PathCount, ...], after: tuple[PathCount, ...]) -> list[PathCount]:
    """The calls between two counts."""
    known = {(path.operation, path.reason): path.calls for path in before}
    risen = ((path, path.calls - known.get((path.operation, path.reason), 0)) for path in after)
    return [PathCount(path.operation, path.reason, calls) for path, calls in risen if calls]


def _measured(
    trainer: Trainer, steps: dict[str, Callable[[], object]], given: argparse.Namespace, end: float
) -> dict[str, StepTimes]:
    """Times of both paths, which alternate, and begin a round by turns. Each round has a step that is not timed."""
    times = {path: StepTimes([], []) for path in PATHS}
    for path in PATHS:
        with trainer.on(path, is_tuned=given.tune):
            _timed(steps[path], 2, trainer.device)
    count = 1 if given.tiny else 3
    for number in range(given.rounds):
        if number >= _MIN_ROUNDS and time.monotonic() > end:
            break
        for path in PATHS if number % 2 == 0 else PATHS[::-1]:
            with trainer.on(path, is_tuned=given.tune):
                steps[path]()
                whole, issued = _timed(steps[path], count, trainer.device)
            times[path].whole.append(whole)
            times[path].issued.append(issued)
    return times


def _timed(step: Callable[[], object], count: int, device: torch.device) -> tuple[float, float]:
    """ms of a step, and ms until the host has issued it."""
    _synchronize(device)
    begin = time.perf_counter()
    for _ in range(count):
        step()
    issued = time.perf_counter()
    _synchronize(device)
    return 1e3 * (time.perf_counter() - begin) / count, 1e3 * (issued - begin) / count


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _captured(trainer: Trainer, path: str, given: argparse.Namespace) -> Callable[[], Any]:
    """The replay of a step on a path, captured in a CUDA graph after three steps on a stream of their own."""
    with trainer.on(path, is_tuned=given.tune):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                trainer.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            trainer.step()
    return graph.replay


def _profiles(
    trainer: Trainer, steps: dict[str, Callable[[], object]], given: argparse.Namespace
) -> Iterator[tuple[str, str]]:
    """Each path with a table of the times of its kernels in two steps."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if trainer.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    order = f"self_{'device' if trainer.device.type == 'cuda' else 'cpu'}_time_total"
    for path in PATHS:
        with trainer.on(path, is_tuned=given.tune), torch.profiler.profile(activities=activities) as profile:
            for _ in range(2):
                steps[path]()
            _synchronize(trainer.device)
        yield path, profile.key_averages().table(sort_by=order, row_limit=80, max_name_column_width=110)


if __name__ == "__main__":
    sys.exit(main())
