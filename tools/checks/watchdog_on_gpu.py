"""The watchdog and kept calls on an NVIDIA GPU: ``python -m tools.checks.watchdog_on_gpu [--emulated]``.

1. A kernel that spins until the host sets a flag is named within twice the limit, and what was launched ends whole.
2. A stream that waits for such a kernel in another stream is not named.
3. A capture stays whole while the watchdog looks, in each mode.
4. The microseconds of the host for an execute are printed, with the watchdog off and on.
5. A call that fails is kept, and replays on this device and on the emulated one.

With ``--emulated`` all runs on the emulated device as a trial of the tool itself: a launch there ends before the host
goes on, so nothing spins and nothing may be named. The exit code is 1 where a check failed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.cli.execution import run_graph
from lowdnn.cli.main import main as lowdnn_command
from lowdnn.config import Config
from lowdnn.driver import open_driver
from lowdnn.driver.base import CaptureMode
from lowdnn.enums import DataType, HeurMode
from lowdnn.plan import KernelRef, Launch, Plan, PlanTensor, Struct, TensorPointer
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.event import Event
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.sources import SourceTree
from lowdnn.runtime.stream import Stream
from lowdnn.runtime.watchdog import Trouble, Watchdog
from lowdnn.runtime.workspace import Workspace
from lowdnn.status import LowdnnError

_LIMIT_S = 1.0
#: Seconds in which the watchdog looks at least once.
_LOOK_S = 0.6
#: The kernel of the launches; FOREVER is 1 in the one that spins.
_SPIN = """
struct Params { volatile unsigned* flag; unsigned* y; };
extern "C" __global__ void KERNEL_NAME(const __grid_constant__ Params p) {
  while (FOREVER && *p.flag == 0) {}
  if (threadIdx.x == 0 && blockIdx.x == 0) p.y[0] += 1;
}
"""
_FLAG, _Y = 1, 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emulated", action="store_true", help="try the tool on the emulated device")
    kind = "emulated" if parser.parse_args().emulated else "cuda"
    logging.basicConfig(level=logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory() as folder:
            are_good = [*_watched(kind, Path(folder, "engines")), _replayed(kind, Path(folder, "dumps"))]
    except LowdnnError as error:
        parser.exit(1, f"tools.checks.watchdog_on_gpu: {error}\n")
    print(f"host us of an execute, watchdog off and on: {_cost(kind)}")
    return 0 if all(are_good) else 1


def _verdict(what: str, is_good: bool, figures: str = "") -> bool:
    print(f"{'ok    ' if is_good else 'FAILED'} {what}{': ' if figures else ''}{figures}", flush=True)
    return is_good


def _watched(kind: str, sources: Path) -> Iterator[bool]:
    """The verdicts on the watchdog."""
    (sources / "pointwise").mkdir(parents=True)
    (sources / "pointwise" / "spin.cu").write_text(_SPIN, encoding="utf-8")
    driver = open_driver(kind)
    driver.init()
    config = Config(disk_cache=False, watchdog_s=_LIMIT_S)
    with Runtime(driver, config=config, sources=SourceTree(sources)) as runtime, ExitStack() as owned:
        spins = _Spins(runtime, owned, can_spin=kind == "cuda")
        yield _hang(spins)
        yield _waiting(spins)
        yield from _captures(spins)


class _Spins:
    """Executes of three launches, of which the second spins as long as the flag is 0."""

    def __init__(self, runtime: Runtime, owned: ExitStack, *, can_spin: bool) -> None:
        assert runtime.watchdog is not None
        self.runtime, self.can_spin, self.executes = runtime, can_spin, 0
        self.watchdog: Watchdog = runtime.watchdog
        context = runtime.context
        self.flag, self.set_flag, self.y = (owned.enter_context(DeviceBuffer.allocate(context, 4)) for _ in range(3))
        self.first, self.second, self.release = (owned.enter_context(Stream.create(context)) for _ in range(3))
        self.event = owned.enter_context(Event.create(context, is_timed=False))
        self.loaded = runtime.load(_spin_plan())
        self.y.copy_from_host(np.zeros(1, np.uint32))
        self._set(self.set_flag, 1)
        # The driver loads code at its first use, which would wait for a kernel that spins.
        self._set(self.flag, 1)
        self.execute(self.flag, self.first)
        self.first.synchronize()

    def execute(self, flag: DeviceBuffer, stream: Stream) -> None:
        self.loaded.execute((flag.address, self.y.address), 0, stream.handle)
        self.executes += 1

    @contextmanager
    def spinning(self, stream: Stream) -> Iterator[None]:
        """An execute spins in the stream inside the ``with``, and has ended behind it."""
        self.watchdog.findings.clear()
        self._set(self.flag, int(not self.can_spin))
        self.execute(self.flag, stream)
        try:
            yield
        finally:
            self._set(self.flag, 1)
            stream.synchronize()

    def count(self) -> int:
        """The launches that have ended."""
        return int(self.y.to_host().view(np.uint32)[0])

    def _set(self, flag: DeviceBuffer, value: int) -> None:
        driver = self.runtime.driver
        with self.runtime.context.activated():
            driver.memset_d32_async(flag.address, value, 1, self.release.handle)
            driver.stream_synchronize(self.release.handle)


def _spin_plan() -> Plan:
    arguments = (Struct((TensorPointer(_FLAG), TensorPointer(_Y))),)
    kernels = tuple(
        KernelRef(f"test_{name}_sm80", "pointwise/spin.cu", "sm_80", (("FOREVER", forever),))
        for name, forever in (("quick", 0), ("spin", 1))
    )
    launches = tuple(Launch(kernel, (4, 1, 1), (64, 1, 1), arguments) for kernel in (0, 1, 0))
    tensors = (
        PlanTensor(_FLAG, "flag", DataType.INT32, 4, 4, is_output=False),
        PlanTensor(_Y, "y", DataType.INT32, 4, 4, is_output=True),
    )
    return Plan("test_spin", 0, "spin", "sm_80", (), kernels, launches, tensors)


def _hang(spins: _Spins) -> bool:
    findings = spins.watchdog.findings
    with spins.spinning(spins.first):
        begin_s = time.monotonic()
        _eventually(lambda: bool(findings), 2 * _LIMIT_S)
        seconds = time.monotonic() - begin_s
    time.sleep(_LOOK_S)
    hangs = [finding for finding in findings if finding.trouble is Trouble.HANG]
    for finding in findings:
        print(f"       {finding.trouble} {finding.fields()}")
    launches = 3 * spins.executes
    figures = f"{len(hangs)} hangs named after {seconds:.2f} s, {spins.count()} of {launches} launches ended"
    is_named = [(hang.launch, hang.stream) for hang in hangs] == [(2, spins.first.handle)] * spins.can_spin
    what = "a hang is named" if spins.can_spin else "nothing is named where nothing spins"
    return _verdict(what, is_named and spins.count() == launches, figures)


def _waiting(spins: _Spins) -> bool:
    """An execute of the first stream waits for the second stream, which spins."""
    with spins.spinning(spins.second):
        spins.event.record(spins.second)
        spins.first.wait(spins.event)
        spins.execute(spins.set_flag, spins.first)
        time.sleep(3 * _LIMIT_S)
        streams = [finding.stream for finding in spins.watchdog.findings]
    spins.first.synchronize()
    what = "only the stream that spins is named" if spins.can_spin else "no stream is named where none spins"
    return _verdict(what, streams == [spins.second.handle] * spins.can_spin)


def _captures(spins: _Spins) -> Iterator[bool]:
    driver = spins.runtime.driver
    for mode in CaptureMode:
        spins.execute(spins.set_flag, spins.first)
        with spins.runtime.context.activated():
            spins.first.begin_capture(mode)
            spins.loaded.execute((spins.set_flag.address, spins.y.address), 0, spins.first.handle)
            time.sleep(_LOOK_S)
            graph = spins.first.end_capture()
            nodes = len(driver.graph_nodes(graph))
            driver.graph_destroy(graph)
        yield _verdict(f"a capture in mode {mode.name} is whole", nodes == 3, f"{nodes} nodes")


def _eventually(is_true: Callable[[], bool], seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while not is_true() and time.monotonic() < end_s:
        time.sleep(0.02)


def _cost(kind: str) -> str:
    """The median time of an execute of a small pointwise case, of rounds in turns."""
    repeats = 3000 if kind == "cuda" else 5
    with ExitStack() as owned:
        off = owned.enter_context(Handle.open(kind))
        on = owned.enter_context(Handle.open(kind, watchdog_s=30.0))
        executes = {"off": _prepared(off, owned), "on": _prepared(on, owned)}
        rounds = [_round_us(executes, repeats) for _ in range(15)]
    off_us, on_us = (statistics.median(times[name] for times in rounds) for name in executes)
    return f"{off_us:.2f} and {on_us:.2f}, difference {on_us - off_us:+.2f}"


def _round_us(executes: Mapping[str, tuple[Callable[[], object], Stream]], repeats: int) -> dict[str, float]:
    times_us = {}
    for name, (execute, stream) in executes.items():
        begin_ns = time.perf_counter_ns()
        for _ in range(repeats):
            execute()
        times_us[name] = (time.perf_counter_ns() - begin_ns) / repeats / 1000
        stream.synchronize()
    return times_us


def _prepared(handle: Handle, owned: ExitStack) -> tuple[Callable[[], object], Stream]:
    """An execute of the case on the handle's device, and the stream that it works in."""
    candidate = handle.rank(parse_case("pointwise dims=1x8x16 ops=add+relu dtype=fp32").graph(), HeurMode.A).best
    loaded, context = handle.load_candidate(candidate), handle.runtime.context
    values, pointers = [], []
    for tensor in candidate.plan.tensors:
        if tensor.is_by_value:
            values.append(np.ones(8, np.float64))
            pointers.append(values[-1].ctypes.data)
        else:
            buffer = owned.enter_context(DeviceBuffer.allocate(context, tensor.size_bytes))
            buffer.fill_bytes(0)
            pointers.append(buffer.address)
    workspace = Workspace(context, candidate.plan.workspace_bytes)
    stream = owned.enter_context(Stream.create(context))

    def execute(_kept: object = values) -> None:
        loaded.execute(tuple(pointers), workspace.address, stream.handle)

    return execute, stream


def _replayed(kind: str, directory: Path) -> bool:
    """Whether a call that fails is kept, and replays here and on the emulated device."""
    config = replace(Config.from_environment(), dump_dir=directory)
    case = parse_case("matmul m=96 n=64 k=80 dtype=bf16 epilogue=bias+relu")
    raised = ""
    with Handle.open(kind, faults="launch:1=OUT_OF_MEMORY", config=config) as handle:
        candidate = handle.rank(case.graph(), HeurMode.A).best
        handle.load_candidate(candidate)
        try:
            run_graph(handle, candidate.graph, candidate.plan, case.inputs(3, exact=False), repeats=0)
        except LowdnnError as error:
            raised = type(error).__name__
    kept = [*directory.iterdir()] if directory.is_dir() else []
    codes = [_replay(path, device) for path in kept for device in (kind, "emulated")]
    figures = f"raised {raised or 'nothing'}, {len(kept)} kept, exit codes {codes}"
    return _verdict("a failing call is kept and replays", bool(raised) and codes == [0, 0], figures)


def _replay(path: Path, device: str) -> int:
    """The exit code of the command, whose output is shown where it fails."""
    options = ["--schedules", "1"] if device == "emulated" else []
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = lowdnn_command(["replay", str(path), "--device", device, *options])
    if code:
        print(output.getvalue())
    return code


if __name__ == "__main__":
    raise SystemExit(main())
