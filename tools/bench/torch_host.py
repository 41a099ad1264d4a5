"""The host time of calls that ``lowdnn.torch`` takes over: ``python -m tools.bench.torch_host``.

For each call one line has the microseconds of the whole call, of the allocation of its results, of ``execute``, and of
the rest, which is what taking over costs. Without a GPU nothing is launched: execute counts 0 then. Each figure is the
least of several rounds. The last line has what a Python function in the dispatcher costs that does nothing.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lowdnn.torch.catalog import OVERLOADS
from lowdnn.torch.counts import PathCounts
from lowdnn.torch.memory import CudaMemory, EmulatedMemory, Launch, LoadedStep, Pointers
from lowdnn.torch.taken import Plans, Run, kernel

_ROUNDS, _CALLS = 200, 200


class NoLaunch(EmulatedMemory):
    """CPU tensors on which nothing runs. It looks at the steps as ``CudaMemory`` does."""

    def launcher(self, steps: Sequence[LoadedStep], device: Any) -> Launch:
        orders = [step.order for step in steps]

        def launch(pointers: Pointers) -> None:
            for order in orders:
                order(pointers)

        return launch


def main() -> int:
    is_gpu = torch.cuda.is_available()
    device, memory = ("cuda", CudaMemory()) if is_gpu else ("cpu", NoLaunch())
    print(f"{'GPU ' + torch.cuda.get_device_name() if is_gpu else 'no GPU'}, torch {torch.__version__}")
    print(f"{'operation':<24}{'call':>8}{'allocate':>10}{'execute':>9}{'rest':>8}  us")
    warnings.simplefilter("ignore")
    for name, call in _calls(device).items():
        _report(name, call, memory)
    library = torch.library.Library("aten", "IMPL")
    x = torch.randn(8, 8, device=device)
    library.impl("mm", lambda keys, *args: args[0], memory.dispatch_key, with_keyset=True, allow_override=True)
    print(f"{'an empty function':<24}{_microseconds(lambda: torch.mm(x, x)):>8.2f}")
    library._destroy()
    memory.close()
    return 0


def _calls(device: str) -> dict[str, Callable[[], Any]]:
    """Calls of operations by the dispatcher's name."""
    x = torch.randn(2, 8, 8, 8, device=device)
    w, bias = torch.randn(8, 8, 3, 3, device=device), torch.randn(8, device=device)
    a, rows = torch.randn(16, 16, device=device), torch.randn(16, device=device)
    return {
        "convolution": lambda: torch.conv2d(x, w, bias),
        "mm": lambda: torch.mm(a, a),
        "addmm": lambda: torch.addmm(rows, a, a),
        "native_layer_norm": lambda: torch.native_layer_norm(a, (16,), rows, rows, 1e-5),
        "_softmax": lambda: torch.softmax(a, -1),
        "avg_pool2d": lambda: torch._C._nn.avg_pool2d(x, 2),
    }


def _report(name: str, call: Callable[[], Any], memory: CudaMemory | EmulatedMemory) -> None:
    overload = next(item for item in OVERLOADS if item.name == name)
    plans = Plans(overload, memory, PathCounts())
    library = torch.library.Library("aten", "IMPL")
    native = torch.library.get_kernel(f"aten::{name}", memory.dispatch_key).call_boxed
    library.impl(name, kernel(plans, native), memory.dispatch_key, with_keyset=True, allow_override=True)
    call()
    whole = _microseconds(call)
    library._destroy()
    (run,) = (found for found in plans._known.values() if isinstance(found, Run))
    device = torch.device("cuda", torch.cuda.current_device()) if memory.is_gpu else torch.device("cpu")
    allocate = sum(_allocation(new.shape, new.strides, new.dtype, device) for new in run.prepared.new)
    execute = sum(_execution(step, device) for step in run.prepared.steps) if memory.is_gpu else 0.0
    print(f"{name:<24}{whole:>8.2f}{allocate:>10.2f}{execute:>9.2f}{whole - allocate - execute:>8.2f}", flush=True)


def _allocation(shape: Sequence[int], strides: Sequence[int], dtype: Any, device: Any) -> float:
    return _microseconds(lambda: torch.empty_strided(shape, strides, dtype=dtype, device=device))


def _execution(step: LoadedStep, device: Any) -> float:
    """``execute`` with addresses that stay as they are."""
    tensors = [torch.zeros(max(region.size_bytes, 16), dtype=torch.uint8, device=device) for region in step.regions]
    places = {region.place: tensor.data_ptr() for region, tensor in zip(step.regions, tensors, strict=True)}
    if len(step.loaded.uids) != len(places):
        return 0.0  # numbers on the host are those of the call
    pointers = step.order([places.get(place, 0) for place in range(max(places) + 1)])
    workspace = torch.empty(max(step.workspace_bytes, 1), dtype=torch.uint8, device=device)
    stream = torch.cuda.current_stream().cuda_stream
    return _microseconds(lambda: step.loaded.execute(pointers, workspace.data_ptr(), stream))


def _microseconds(call: Callable[[], Any]) -> float:
    """The least time of a call over several rounds, without that of the loop. A GPU's queue is emptied between them."""
    times = []
    for _ in range(_ROUNDS):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        for _ in range(_CALLS):
            pass
        middle = time.perf_counter_ns()
        for _ in range(_CALLS):
            call()
        times.append((time.perf_counter_ns() - middle - (middle - begin)) / _CALLS / 1000)
    return min(times)


if __name__ == "__main__":
    sys.exit(main())
