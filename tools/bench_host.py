"""Host time of one execute against the bare launch under it, on the GPU.

    PYTHONPATH=. python tools/bench_host.py [--repeats N] [--json]

Every row is the median, over many short bursts, of the host time of one call without synchronisation; bursts are kept
below the depth of the driver's launch queue and the device is drained in between. Rows are interleaved, so that all see
the same machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cuda.bindings import driver as bindings

from lowdnn.backend.handle import Handle
from lowdnn.config import Config
from lowdnn.driver import open_driver
from lowdnn.enums import DataType, HeurMode
from lowdnn.graph.cases import parse_case
from lowdnn.heuristics.ranking import rank
from lowdnn.plan import KernelRef, Launch, Plan, PlanTensor, Scalar, ScalarType, Struct, TensorPointer
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.sources import SourceTree
from lowdnn.runtime.stream import Stream

_SOURCE = """
struct Params { const float* x; float* y; long long count; };
extern "C" __global__ void KERNEL_NAME(const __grid_constant__ Params p) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < p.count) p.y[i] = p.x[i];
}
"""
_COUNT = 1024
_BURST = 100


@dataclass(frozen=True)
class Row:
    """Median and 10th/90th percentile of one kind of call, in microseconds, and its ratio to the bare launch."""

    name: str
    median_us: float
    low_us: float
    high_us: float
    ratio: float


def measure_host(repeats: int) -> list[Row]:
    """The table of the module's docstring; ``repeats`` bursts of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "copy.cu").write_text(_SOURCE, encoding="utf-8")
        config = Config(disk_cache=False)
        with (
            Runtime(open_driver("cuda"), config=config, sources=SourceTree(Path(folder))) as runtime,
            Stream.create(runtime.context) as stream,
            runtime.context.activated(),
        ):
            return _measure(_calls(runtime, stream), stream, repeats)


def measure_planning(repeats: int) -> list[Row]:
    """Host time from a new shape to a loaded plan with a known kernel: graph, ranking, plan, load; nothing compiled.

    ``ratio`` is relative to the first row.
    """
    cases = {
        "conv, new batch": "conv n={} c=64 hw=56x56 k=64 rs=3x3 pad=1 dtype=bf16 epilogue=bias+relu",
        "matmul, new m": "matmul m={} n=4096 k=4096 layout=nt dtype=bf16 epilogue=bias+gelu",
        "pointwise, new batch": "pointwise dims={}x64x56x56 ops=scale+bias+relu dtype=bf16",
        "reduction, new rows": "reduction dims={}x4096 axes=1 op=add dtype=fp32",
    }
    with Handle.open("cuda") as handle:
        times = {
            name: [_planning_us(handle, text, step) for step in range(repeats)][1:] for name, text in cases.items()
        }
    first = statistics.median(next(iter(times.values())))
    return [_row(f"graph to loaded plan: {name}", values, first) for name, values in times.items()]


def _planning_us(handle: Handle, text: str, step: int) -> float:
    case = parse_case(text.format(1024 + 128 * step))
    start = time.perf_counter_ns()
    graph = case.graph()
    handle.load(rank(graph, handle.arch, HeurMode.A, handle.engines).candidates[0].plan)
    return (time.perf_counter_ns() - start) / 1e3


def _calls(runtime: Runtime, stream: Stream) -> dict[str, Callable[[], object]]:
    context, driver, handle = runtime.context, runtime.driver, stream.handle
    plan = _copy_plan()
    loaded = runtime.load(plan)
    x, y, z = (DeviceBuffer.allocate(context, 4 * _COUNT) for _ in range(3))
    x.copy_from_host(np.zeros(_COUNT, np.float32))
    same, other = (x.address, y.address), (x.address, z.address)
    by_uid = {1: x.address, 2: y.address}
    toggle = [same, other]
    buffers = (x, y, z)

    block = (np.array([x.address, y.address, _COUNT], np.uint64), np.zeros(1, np.uint64))
    block[1][0] = block[0].ctypes.data
    function = bindings.CUfunction(runtime.modules.function(plan.kernels[0]))
    raw_stream, parameters = bindings.CUstream(handle), block[1].ctypes.data
    launch_kernel = bindings.cuLaunchKernel

    def bare(keep: object = (block, buffers)) -> object:
        return launch_kernel(function, 8, 1, 1, 128, 1, 1, 0, raw_stream, parameters, 0)

    def changing() -> None:
        toggle.reverse()
        loaded.execute(toggle[0], 0, handle)

    graph = driver.graph_create()
    loaded.add_to_graph(graph, same)
    graph_exec = driver.graph_instantiate(graph)
    return {
        "bare cuLaunchKernel": bare,
        "execute, same pointers": lambda: loaded.execute(same, 0, handle),
        "execute, one pointer changes": changing,
        "execute, pointers by uid": lambda: loaded.execute(by_uid, 0, handle),
        "graph launch": lambda: driver.graph_launch(graph_exec, handle),
        "context_get_current": driver.context_get_current,
    }


def _measure(calls: dict[str, Callable[[], object]], stream: Stream, repeats: int) -> list[Row]:
    times_us: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            call()
            stream.synchronize()
            start = time.perf_counter_ns()
            for _ in range(_BURST):
                call()
            times_us[name].append((time.perf_counter_ns() - start) / _BURST / 1e3)
            stream.synchronize()
    bare_us = statistics.median(next(iter(times_us.values())))
    return [_row(name, values, bare_us) for name, values in times_us.items()]


def _row(name: str, values: list[float], bare_us: float) -> Row:
    deciles = statistics.quantiles(values, n=10)
    median_us = statistics.median(values)
    return Row(name, median_us, deciles[0], deciles[-1], median_us / bare_us)


def _copy_plan() -> Plan:
    arguments = Struct((TensorPointer(1), TensorPointer(2), Scalar(ScalarType.I64, _COUNT)))
    return Plan(
        engine="bench_copy",
        engine_index=0,
        graph_key="bench_copy",
        target_arch="sm_80",
        choices=(),
        kernels=(KernelRef("bench_copy_f32_sm80", "copy.cu", "sm_80"),),
        launches=(Launch(0, (8, 1, 1), (128, 1, 1), (arguments,)),),
        tensors=(
            PlanTensor(1, "x", DataType.FLOAT, 4 * _COUNT, 16, is_output=False),
            PlanTensor(2, "y", DataType.FLOAT, 4 * _COUNT, 16, is_output=True),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=300, help="bursts of each kind (default 300)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    rows = measure_host(arguments.repeats)
    if arguments.json:
        print(json.dumps([vars(row) for row in rows]))
        return
    print(f"{'call':32}{'median us':>10}{'10 %':>8}{'90 %':>8}{'ratio':>8}")
    for row in rows:
        print(f"{row.name:32}{row.median_us:10.2f}{row.low_us:8.2f}{row.high_us:8.2f}{row.ratio:8.2f}")


if __name__ == "__main__":
    main()
