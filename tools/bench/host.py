"""Host time of one execute against the bare launch under it, on the GPU; and of planning, anywhere.

    PYTHONPATH=. python tools/bench_host.py [--repeats N] [--json]
    PYTHONPATH=. python tools/bench_host.py --planning [--repeats N] [--sample N] [--json]

Of executes every row is the median, over many short bursts, of the host time of one call without synchronisation;
bursts are kept below the depth of the driver's launch queue and the device is drained in between. Rows are interleaved,
so that all see the same machine.

Of planning a row is a class of the benchmarks' cases on one architecture: from a finalized graph to
the plan of the heuristics' first choice, processor time, each case as the median over shapes that were never planned
before.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from bench_suites import DEVICE_SUITES, SuiteCase, sampled, suite_cases
from cuda.bindings import driver as bindings
from numpy.typing import NDArray

from lowdnn.arch.specs import SPECS, ArchSpec
from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.config import Config
from lowdnn.driver import open_driver
from lowdnn.driver.base import DeviceAttribute
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import DataType, HeurMode
from lowdnn.frontend.data_types import data_type
from lowdnn.frontend.device_tensor import from_numpy
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.python_graph import pygraph
from lowdnn.heuristics.ranking import rank
from lowdnn.plan import KernelRef, Launch, Plan, PlanTensor, Scalar, ScalarType, Struct, TensorMap, TensorPointer
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.sources import SourceTree
from lowdnn.runtime.stream import Stream
from lowdnn.status import NotSupportedError
from lowdnn.tensor_map import TensorMapDataType, TiledMap

_COPY_SOURCE = """
struct Params { const float* x; float* y; long long count; };
extern "C" __global__ void KERNEL_NAME(const __grid_constant__ Params p) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < p.count) p.y[i] = p.x[i];
}
"""
#: Touches its tensor maps and nothing else, since only the time of the host counts.
_MAPS_SOURCE = """
struct alignas(64) TensorMap { unsigned long long words[16]; };
struct Params { TensorMap x; TensorMap y; };
#if CLUSTER > 1
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) KERNEL_NAME(const __grid_constant__ Params p);
#endif
extern "C" __global__ void KERNEL_NAME(const __grid_constant__ Params p) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("prefetch.tensormap [%0];" :: "l"(&p.x) : "memory");
  asm volatile("prefetch.tensormap [%0];" :: "l"(&p.y) : "memory");
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
        (Path(folder) / "copy.cu").write_text(_COPY_SOURCE, encoding="utf-8")
        (Path(folder) / "maps.cu").write_text(_MAPS_SOURCE, encoding="utf-8")
        config = Config(disk_cache=False)
        with (
            Runtime(open_driver("cuda"), config=config, sources=SourceTree(Path(folder))) as runtime,
            Stream.create(runtime.context) as stream,
            runtime.context.activated(),
        ):
            calls = _calls(runtime, stream)
            with Handle.open("cuda") as handle:
                handle.set_stream(stream.handle)
                return _measure(calls | norm_calls(handle), stream, repeats)


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


@dataclass(frozen=True)
class PlanningRow:
    """Microseconds from a graph to its first choice's plan: median and greatest of a class's cases, and the latter."""

    arch: str
    class_: str
    cases: int
    median_us: float
    most_us: float
    slowest: str


def measure_plans(repeats: int, sample: int, seed: int = 4) -> list[PlanningRow]:
    """One row for each architecture and class, of at most ``sample`` cases of each class of each suite."""
    suites = [sampled(suite_cases(suite), sample, seed) for suite in DEVICE_SUITES]
    rows = []
    for arch in SPECS:
        times: dict[str, list[tuple[float, str]]] = {}
        for case in (case for suite in suites for case in suite):
            times.setdefault(case.class_, []).append((_plan_us(case, arch, repeats), case.text))
        for class_, timed in times.items():
            median_us = statistics.median(us for us, _ in timed)
            rows.append(PlanningRow(arch.name, class_, len(timed), median_us, *max(timed)))
    return rows


#: The first extent of a case, behind its key.
_EXTENT = re.compile(r"(\b(?:n|m|dims)=)(\d+)")


def _plan_us(case: SuiteCase, arch: ArchSpec, repeats: int) -> float:
    """Of shapes that differ in their first extent; the first one, which warms up, does not count."""
    times = []
    for step in range(1 + repeats):
        graph = parse_case(_grown(case.text, 16 * step)).graph()
        start = time.process_time_ns()
        best = rank(graph, arch, HeurMode.A, ENGINES).best
        times.append((time.process_time_ns() - start) / 1e3)
        if best is None:
            raise NotSupportedError(f"{case.text}: no engine takes it")
    return statistics.median(times[1:])


def _grown(text: str, more: int) -> str:
    return _EXTENT.sub(lambda found: f"{found[1]}{int(found[2]) + more}", text, count=1)


def _planning_us(handle: Handle, text: str, step: int) -> float:
    case = parse_case(text.format(1024 + 128 * step))
    start = time.perf_counter_ns()
    graph = case.graph()
    best = rank(graph, handle.arch, HeurMode.A, handle.engines).best
    if best is None:
        raise NotSupportedError(f"{case}: no engine takes it")
    handle.load(best.plan)
    return (time.perf_counter_ns() - start) / 1e3


def _calls(runtime: Runtime, stream: Stream) -> dict[str, Callable[[], object]]:
    driver, handle = runtime.driver, stream.handle
    loaded = runtime.load(_copy_plan())
    buffers = tuple(DeviceBuffer.allocate(runtime.context, 4 * _COUNT) for _ in range(3))
    buffers[0].copy_from_host(np.zeros(_COUNT, np.float32))
    x, y, z = (buffer.address for buffer in buffers)
    by_uid = {1: x, 2: y}
    graph = driver.graph_create()
    loaded.add_to_graph(graph, (x, y))
    graph_exec = driver.graph_instantiate(graph)
    calls: dict[str, Callable[[], object]] = {
        "bare cuLaunchKernel": _bare_launch(runtime, buffers, handle),
        "bare cuLaunchKernelEx": _bare_extended_launch(runtime, buffers, handle),
        "execute, same pointers": _executing(loaded, handle, (x, y)),
        "execute, one pointer changes": _executing(loaded, handle, (x, y), (x, z)),
        "execute, pointers by uid": lambda: loaded.execute(by_uid, 0, handle),
        "graph launch": lambda: driver.graph_launch(graph_exec, handle),
        "context_get_current": driver.context_get_current,
    }
    if runtime.context.attribute(DeviceAttribute.CLUSTER_LAUNCH):
        calls |= _hopper_calls(runtime, handle, (x, y), (y, z))
    return calls


def _hopper_calls(
    runtime: Runtime, stream: int, pointers: tuple[int, int], others: tuple[int, int]
) -> dict[str, Callable[[], object]]:
    """Executes of plans whose kernel takes two tensor maps."""

    def executing(choices: Sequence[tuple[int, int]], own_cluster: int = 1, **launch: Any) -> Callable[[], object]:
        return _executing(runtime.load(_maps_plan(own_cluster, **launch)), stream, *choices)

    pair = (2, 1, 1)
    return {
        "execute, two tensor maps": executing([pointers]),
        "execute, two tensor maps change": executing([pointers, others]),
        "execute, clusters of the kernel": executing([pointers], own_cluster=2, cluster=pair),
        "execute, clusters of the launch": executing([pointers], cluster=pair),
        "execute, dependent launch": executing([pointers], overlaps_previous=True),
    }


def norm_calls(handle: Handle) -> dict[str, Callable[[], object]]:
    """``pygraph.execute`` of a batch norm in training, its epsilon and momentum given in every way."""
    float_type = data_type.FLOAT
    graph = pygraph("batch norm", float_type, float_type, float_type, handle)
    x = graph.tensor([4, 16, 8, 8])
    scale, bias, mean, variance = (graph.tensor([1, 16, 1, 1]) for _ in range(4))
    epsilon, momentum = (graph.tensor([1, 1, 1, 1], is_pass_by_value=True) for _ in range(2))
    outputs = graph.batchnorm(x, scale, bias, mean, variance, epsilon, momentum)
    for output in outputs:
        output.set_output(True).set_data_type(float_type)
    graph.build()
    stored = (x, scale, bias, mean, variance, *outputs)
    tensors = {tensor: from_numpy(np.ones(tensor.get_dim(), np.float32), handle) for tensor in stored}
    addresses = {tensor: array.ptr for tensor, array in tensors.items()}
    workspace = DeviceBuffer.allocate(handle.runtime.context, graph.get_workspace_size())
    held = np.array([1e-5, 0.1], np.float32)

    def executing(values: Sequence[object], given: Mapping[Tensor, object] = addresses) -> Callable[[], object]:
        everything = {**given, **dict(zip((epsilon, momentum), values, strict=True))}
        return lambda keep=(tensors, held): graph.execute(everything, workspace)

    calls = {
        "norm, all by address": executing([held.ctypes.data, held.ctypes.data + 4]),
        "norm, device tensors": executing([held.ctypes.data, held.ctypes.data + 4], tensors),
        "norm, values as arrays": executing([held[:1], held[1:]]),
        "norm, values as floats": executing([1e-5, 0.1]),
    }
    if find_spec("torch"):
        torch = import_module("torch")
        values = [torch.full((1, 1, 1, 1), value) for value in (1e-5, 0.1)]
        calls["norm, values as CPU tensors"] = executing(values)
    return calls


def _executing(loaded: LoadedPlan, stream: int, *choices: tuple[int, int]) -> Callable[[], object]:
    """An execute, with each of the choices of pointers in turn."""
    turns = cycle(choices)
    return lambda: loaded.execute(next(turns), 0, stream)


def _bare_launch(runtime: Runtime, buffers: Sequence[DeviceBuffer], stream: int) -> Callable[[], object]:
    block = _bare_parameters(buffers)
    function = bindings.CUfunction(runtime.modules.function(_copy_plan().kernels[0]))
    raw_stream, parameters = bindings.CUstream(stream), block[1].ctypes.data
    launch_kernel = bindings.cuLaunchKernel

    def bare(keep: object = (block, buffers)) -> object:
        return launch_kernel(function, 8, 1, 1, 128, 1, 1, 0, raw_stream, parameters, 0)

    return bare


def _bare_extended_launch(runtime: Runtime, buffers: Sequence[DeviceBuffer], stream: int) -> Callable[[], object]:
    block = _bare_parameters(buffers)
    function = bindings.CUfunction(runtime.modules.function(_copy_plan().kernels[0]))
    config, parameters = bindings.CUlaunchConfig(), block[1].ctypes.data
    config.gridDimX, config.gridDimY, config.gridDimZ = 8, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 128, 1, 1
    config.hStream = bindings.CUstream(stream)
    launch_kernel = bindings.cuLaunchKernelEx

    def bare(keep: object = (block, buffers)) -> object:
        return launch_kernel(config, function, parameters, 0)

    return bare


def _bare_parameters(buffers: Sequence[DeviceBuffer]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The parameters of the copy, and the ``void*[]`` with their address."""
    values = np.array([buffers[0].address, buffers[1].address, _COUNT], np.uint64)
    return values, np.array([values.ctypes.data], np.uint64)


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
    launch = Launch(0, (8, 1, 1), (128, 1, 1), (arguments,))
    return _plan(KernelRef("bench_copy_f32_sm80", "copy.cu", "sm_80"), launch)


def _maps_plan(own_cluster: int, **launch: Any) -> Plan:
    """``own_cluster``: the blocks of the clusters that the kernel asks for."""
    layout = TiledMap(TensorMapDataType.FLOAT32, 0, (32, _COUNT // 32), (128,), (32, 8), (1, 1))
    arguments = Struct((TensorMap(TensorPointer(1), layout), TensorMap(TensorPointer(2), layout)))
    name = f"bench_maps_c{own_cluster}_f32_sm90a"
    kernel = KernelRef(name, "maps.cu", "sm_90a", (("CLUSTER", own_cluster),))
    return _plan(kernel, Launch(0, (8, 1, 1), (128, 1, 1), (arguments,), **launch))


def _plan(kernel: KernelRef, launch: Launch) -> Plan:
    return Plan(
        engine="bench",
        engine_index=0,
        graph_key="bench",
        target_arch=kernel.target,
        choices=(),
        kernels=(kernel,),
        launches=(launch,),
        tensors=(
            PlanTensor(1, "x", DataType.FLOAT, 4 * _COUNT, 16, is_output=False),
            PlanTensor(2, "y", DataType.FLOAT, 4 * _COUNT, 16, is_output=True),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planning", action="store_true", help="time plans, without a GPU")
    parser.add_argument(
        "--repeats", type=int, help="bursts of each kind (default 300), shapes of each case (default 7)"
    )
    parser.add_argument("--sample", type=int, default=20, help="cases of each class that are planned (default 20)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    if arguments.planning:
        _print_plans(measure_plans(arguments.repeats or 7, arguments.sample), as_json=arguments.json)
        return
    rows = measure_host(arguments.repeats or 300)
    if arguments.json:
        print(json.dumps([vars(row) for row in rows]))
        return
    print(f"{'call':32}{'median us':>10}{'10 %':>8}{'90 %':>8}{'ratio':>8}")
    for row in rows:
        print(f"{row.name:32}{row.median_us:10.2f}{row.low_us:8.2f}{row.high_us:8.2f}{row.ratio:8.2f}")


def _print_plans(rows: Sequence[PlanningRow], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([vars(row) for row in rows]))
        return
    print(f"{'arch':8}{'cases':>6}{'median us':>11}{'most us':>9}  class; slowest case")
    for row in rows:
        print(f"{row.arch:8}{row.cases:6}{row.median_us:11.0f}{row.most_us:9.0f}  {row.class_}; {row.slowest}")


if __name__ == "__main__":
    main()
