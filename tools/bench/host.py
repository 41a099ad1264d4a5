"""Host time of one execute against the bare launch under it, on the GPU.

    python -m tools.bench.host [--repeats N] [--json]

A row is the host time of one call without synchronisation, over many short bursts. Bursts are kept below the depth of
the driver's launch queue, and the device is drained in between. Rows are interleaved, so that all see the same machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver as bindings
from numpy.typing import NDArray

from lowdnn.backend.handle import Handle
from lowdnn.bench.statistics import Timing
from lowdnn.config import Config
from lowdnn.driver import open_driver
from lowdnn.driver.base import DeviceAttribute
from lowdnn.enums import DataType
from lowdnn.frontend.data_types import data_type
from lowdnn.frontend.device_tensor import from_numpy
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.python_graph import pygraph
from lowdnn.plan import KernelRef, Launch, Plan, PlanTensor, Scalar, ScalarType, Struct, TensorMap, TensorPointer
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.sources import SourceTree
from lowdnn.runtime.stream import Stream
from lowdnn.tensor_map import TensorMapDataType, TiledMap

COPY_SOURCE = """
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
COUNT = 1024
_BURST = 100


def measure_host(repeats: int) -> dict[str, Timing]:
    """The time of each kind of call, the bare launch first; ``repeats`` bursts of each."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "copy.cu").write_text(COPY_SOURCE, encoding="utf-8")
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


def _calls(runtime: Runtime, stream: Stream) -> dict[str, Callable[[], object]]:
    driver, handle = runtime.driver, stream.handle
    loaded = runtime.load(copy_plan())
    buffers = tuple(DeviceBuffer.allocate(runtime.context, 4 * COUNT) for _ in range(3))
    buffers[0].copy_from_host(np.zeros(COUNT, np.float32))
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
    function = bindings.CUfunction(runtime.modules.function(copy_plan().kernels[0]))
    raw_stream, parameters = bindings.CUstream(stream), block[1].ctypes.data
    launch_kernel = bindings.cuLaunchKernel

    def bare(keep: object = (block, buffers)) -> object:
        return launch_kernel(function, 8, 1, 1, 128, 1, 1, 0, raw_stream, parameters, 0)

    return bare


def _bare_extended_launch(runtime: Runtime, buffers: Sequence[DeviceBuffer], stream: int) -> Callable[[], object]:
    block = _bare_parameters(buffers)
    function = bindings.CUfunction(runtime.modules.function(copy_plan().kernels[0]))
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
    values = np.array([buffers[0].address, buffers[1].address, COUNT], np.uint64)
    return values, np.array([values.ctypes.data], np.uint64)


def _measure(calls: dict[str, Callable[[], object]], stream: Stream, repeats: int) -> dict[str, Timing]:
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
    return {name: Timing.of(values) for name, values in times_us.items()}


def copy_plan() -> Plan:
    arguments = Struct((TensorPointer(1), TensorPointer(2), Scalar(ScalarType.I64, COUNT)))
    launch = Launch(0, (8, 1, 1), (128, 1, 1), (arguments,))
    return _plan(KernelRef("bench_copy_f32_sm80", "copy.cu", "sm_80"), launch)


def _maps_plan(own_cluster: int, **launch: Any) -> Plan:
    """``own_cluster``: the blocks of the clusters that the kernel asks for."""
    layout = TiledMap(TensorMapDataType.FLOAT32, 0, (32, COUNT // 32), (128,), (32, 8), (1, 1))
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
            PlanTensor(1, "x", DataType.FLOAT, 4 * COUNT, 16, is_output=False),
            PlanTensor(2, "y", DataType.FLOAT, 4 * COUNT, 16, is_output=True),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=300, help="bursts of each kind of call (default 300)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    times = measure_host(arguments.repeats)
    if arguments.json:
        print(json.dumps({name: vars(timing) for name, timing in times.items()}))
        return
    bare_us = next(iter(times.values())).us
    print(f"{'call':32}{'median us':>10}{'10 %':>8}{'90 %':>8}{'ratio':>8}")
    for name, timing in times.items():
        print(f"{name:32}{timing.us:10.2f}{timing.low_us:8.2f}{timing.high_us:8.2f}{timing.us / bare_us:8.2f}")


if __name__ == "__main__":
    main()
