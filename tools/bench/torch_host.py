"""The host time of calls that ``lowdnn.torch`` takes over: ``python -m tools.bench.torch_host``.

For each call one line has the microseconds of the native operation, of a Python function in the dispatcher that does
nothing, of a call that lowdnn has taken over and leaves to the native kernel, and of lowdnn's. Three more columns
divide the last one: the allocation of the results, ``execute``, and the rest, which is what taking over costs; it has
what the function that does nothing takes. In brackets stands ``execute`` with addresses that are others than the last
ones, which is what the layers of a network give it. Without a GPU lowdnn launches nothing, and execute counts 0. Each
figure is the least of several rounds, whose calls all fit into the launch queue.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from lowdnn.torch.catalog import OVERLOADS
from lowdnn.torch.counts import PathCounts
from lowdnn.torch.memory import CudaMemory, EmulatedMemory, Launch, LoadedStep, Pointers
from lowdnn.torch.run import Run
from lowdnn.torch.taken import Plans, kernel

_ROUNDS, _CALLS = 100, 30


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
    columns = ("native", "empty", "left", "lowdnn", "allocate", "execute", "rest", "(anew)")
    print(f"{'operation':<48}{''.join(f'{column:>9}' for column in columns)}  us")
    warnings.simplefilter("ignore")
    memory.prefers_fastest = False
    for name, call in _calls(device).items():
        _report(name, call, memory)
    memory.close()
    return 0


def _calls(device: str) -> dict[str, Callable[[], Any]]:
    """Calls of operations by the dispatcher's name: convolutions of channels last in bf16, and other small tensors."""
    image = {"device": device, "dtype": torch.bfloat16}
    x, dy = (torch.randn(2, 64, 8, 8, **image).to(memory_format=torch.channels_last) for _ in range(2))
    w = torch.randn(64, 64, 3, 3, **image).to(memory_format=torch.channels_last)
    scale, bias, mean, variance = torch.rand(4, 64, device=device).unbind()
    a, b, da = (torch.randn(64, 64, device=device) for _ in range(3))
    aten = torch.ops.aten
    pads = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    normed = torch.native_batch_norm(x, scale, bias, mean, variance, True, 0.1, 1e-5)
    layer_normed = torch.native_layer_norm(a, (64,), scale, bias, 1e-5)
    calls = {
        "convolution": lambda: torch.conv2d(x, w, padding=1),
        "convolution_backward": lambda: aten.convolution_backward(dy, x, w, None, *pads, [True, True, False]),
        "mm": lambda: torch.mm(a, b),
        "addmm": lambda: torch.addmm(bias, a, b),
        "native_batch_norm": lambda: torch.native_batch_norm(x, scale, bias, mean, variance, True, 0.1, 1e-5),
        "native_batch_norm_backward": lambda: aten.native_batch_norm_backward(
            dy, x, scale, mean, variance, *normed[1:], True, 1e-5, [True, True, True]
        ),
        "native_layer_norm": lambda: torch.native_layer_norm(a, (64,), scale, bias, 1e-5),
        "native_layer_norm_backward": lambda: aten.native_layer_norm_backward(
            da, a, (64,), *layer_normed[1:], scale, bias, [True, True, True]
        ),
        "_softmax": lambda: torch.softmax(a, -1),
        "avg_pool2d": lambda: torch._C._nn.avg_pool2d(x, 2),
    }
    return calls | (_attentions() if device == "cuda" else {})


def _attentions() -> dict[str, Callable[[], Any]]:
    """The entries that PyTorch has for CUDA tensors, forward and backward."""
    q, k, v, dy = torch.randn(4, 2, 4, 64, 64, device="cuda", dtype=torch.bfloat16).unbind()
    aten = torch.ops.aten
    flash, cudnn = "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention"
    ahead = aten._scaled_dot_product_flash_attention(q, k, v)
    of_cudnn = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)
    return {
        flash: lambda: aten._scaled_dot_product_flash_attention(q, k, v),
        f"{flash}_backward": lambda: aten._scaled_dot_product_flash_attention_backward(
            dy, q, k, v, *ahead[:6], 0.0, False, *ahead[6:8]
        ),
        cudnn: lambda: aten._scaled_dot_product_cudnn_attention(q, k, v, None, True),
        f"{cudnn}_backward": lambda: aten._scaled_dot_product_cudnn_attention_backward(
            dy, q, k, v, *of_cudnn[:2], *of_cudnn[6:8], None, *of_cudnn[2:6], 0.0, False
        ),
    }


def _report(name: str, call: Callable[[], Any], memory: CudaMemory | EmulatedMemory) -> None:
    overload = next(item for item in OVERLOADS if item.name == name)
    native_us, results = _microseconds(call), call()
    with _taken(overload.name, memory, lambda *_, **__: results):
        empty_us = _microseconds(call)
    plans = Plans(overload, memory, PathCounts())
    with _taken(overload.name, memory, kernel(plans, _native(name, memory))):
        call()
        whole_us = _microseconds(call)
        (run,) = (found for found in plans._known.values() if isinstance(found, Run))
        launched, kept = _launched(run, call)
        left = PathCounts().of(name, "left")
        plans._known.update(dict.fromkeys(plans._known, left))
        plans._alike.clear()
        left_us = _microseconds(call)
    device = torch.device("cuda", torch.cuda.current_device()) if memory.is_gpu else torch.device("cpu")
    allocate = memory.allocator(device)()
    new = [(new.shape, new.strides, new.dtype) for new in run.prepared.new]
    allocate_us = sum(_microseconds(partial(allocate, *one)) for one in new)
    execute_us, anew_us = _executions(run, launched, device) if memory.is_gpu else (0.0, 0.0)
    del kept
    rest_us = whole_us - allocate_us - execute_us
    times = native_us, empty_us, left_us, whole_us, allocate_us, execute_us, rest_us, anew_us
    print(f"{name:<48}{''.join(f'{time_us:>9.2f}' for time_us in times)}", flush=True)


@contextmanager
def _taken(name: str, memory: CudaMemory | EmulatedMemory, function: Callable[..., Any]) -> Iterator[None]:
    """The function computes the operation."""
    library = torch.library.Library("aten", "IMPL")
    library.impl(name, function, memory.dispatch_key, allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def _native(name: str, memory: CudaMemory | EmulatedMemory) -> Callable[..., Any]:
    key = memory.dispatch_key
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return partial(torch.library.get_kernel(f"aten::{name}", key).call_boxed, keys)


def _launched(run: Run, call: Callable[[], Any]) -> tuple[list[int], Any]:
    """The addresses of all places of a call, and its results, which keep them."""
    found, inner = list[int](), run.call

    def recorded(tensors: tuple[Any, ...], arguments: tuple[Any, ...], pointers: list[int]) -> Any:
        try:
            return inner(tensors, arguments, pointers)
        finally:
            found[:] = pointers

    run.call = recorded
    try:
        return found, call()
    finally:
        run.call = inner


def _executions(run: Run, pointers: list[int], device: Any) -> tuple[float, float]:
    """``execute`` of all steps with the addresses of a call, and with others each time."""
    stream = torch.cuda.current_stream().cuda_stream
    same_us = anew_us = 0.0
    for step in run.prepared.steps:
        room = [torch.zeros(region.size_bytes + 256, dtype=torch.uint8, device=device) for region in step.regions]
        others = [*pointers]
        for region, tensor in zip(step.regions, room, strict=True):
            others[region.place] = tensor.data_ptr()
        workspace = torch.empty(max(step.workspace_bytes, 1), dtype=torch.uint8, device=device)
        execute, address = step.loaded.execute, workspace.data_ptr()
        first, second = step.order(pointers), step.order(others)
        same_us += _microseconds(partial(execute, first, address, stream))
        anew_us += _microseconds(partial(_alternate, partial(execute, workspace=address, stream=stream), first, second))
    return same_us, anew_us / 2


def _alternate(execute: Callable[[tuple[int, ...]], None], first: tuple[int, ...], second: tuple[int, ...]) -> None:
    execute(first)
    execute(second)


def _microseconds(call: Callable[[], Any]) -> float:
    """The least time of a call over several rounds, without that of the loop. A GPU's queue is emptied between them."""
    loops, times = [], []
    for _ in range(_ROUNDS):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        for _ in range(_CALLS):
            pass
        middle = time.perf_counter_ns()
        for _ in range(_CALLS):
            call()
        loops.append(middle - begin)
        times.append(time.perf_counter_ns() - middle)
    return (min(times) - min(loops)) / _CALLS / 1000


if __name__ == "__main__":
    sys.exit(main())
