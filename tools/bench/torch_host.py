"""The host time of calls that ``lowdnn.torch`` takes over: ``python -m tools.bench.torch_host``.

For each call one line has the microseconds of the native operation, of one that lowdnn has taken over and leaves to the
native kernel, and of lowdnn's. Three more columns divide the last one: the allocation of the results, ``execute``, and
the rest, which is what taking over costs. Without a GPU lowdnn launches nothing, and execute counts 0. Each figure is
the least of several rounds, whose calls all fit into the launch queue. The last line has what a Python function in the
dispatcher costs that does nothing.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from lowdnn.torch.catalog import OVERLOADS
from lowdnn.torch.counts import PathCounts
from lowdnn.torch.memory import CudaMemory, EmulatedMemory, Launch, LoadedStep, Pointers
from lowdnn.torch.taken import Plans, Run, kernel

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
    columns = ("native", "left", "lowdnn", "allocate", "execute", "rest")
    print(f"{'operation':<48}{''.join(f'{column:>9}' for column in columns)}  us")
    warnings.simplefilter("ignore")
    memory.prefers_fastest = False
    for name, call in _calls(device).items():
        _report(name, call, memory)
    library = torch.library.Library("aten", "IMPL")
    x = torch.randn(8, 8, device=device)
    library.impl("mm", lambda keys, *args: args[0], memory.dispatch_key, with_keyset=True, allow_override=True)
    print(f"{'an empty function':<48}{_microseconds(lambda: torch.mm(x, x)):>9.2f}")
    library._destroy()
    memory.close()
    return 0


def _calls(device: str) -> dict[str, Callable[[], Any]]:
    """Calls of operations by the dispatcher's name."""
    x, dy = torch.randn(2, 8, 8, 8, device=device), torch.randn(2, 8, 8, 8, device=device)
    w, bias = torch.randn(8, 8, 3, 3, device=device), torch.randn(8, device=device)
    a, rows = torch.randn(16, 16, device=device), torch.randn(16, device=device)
    running = torch.zeros(8, device=device), torch.ones(8, device=device)
    aten = torch.ops.aten
    pads = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    normed = torch.native_batch_norm(x, bias, bias, *running, True, 0.1, 1e-5)
    layer_normed = torch.native_layer_norm(a, (16,), rows, rows, 1e-5)
    calls = {
        "convolution": lambda: torch.conv2d(x, w, bias, padding=1),
        "convolution_backward": lambda: aten.convolution_backward(dy, x, w, [8], *pads, [True, True, True]),
        "mm": lambda: torch.mm(a, a),
        "addmm": lambda: torch.addmm(rows, a, a),
        "native_batch_norm": lambda: torch.native_batch_norm(x, bias, bias, *running, True, 0.1, 1e-5),
        "native_batch_norm_backward": lambda: aten.native_batch_norm_backward(
            dy, x, bias, *running, *normed[1:], True, 1e-5, [True, True, True]
        ),
        "native_layer_norm": lambda: torch.native_layer_norm(a, (16,), rows, rows, 1e-5),
        "native_layer_norm_backward": lambda: aten.native_layer_norm_backward(
            a, a, (16,), *layer_normed[1:], rows, rows, [True, True, True]
        ),
        "_softmax": lambda: torch.softmax(a, -1),
        "avg_pool2d": lambda: torch._C._nn.avg_pool2d(x, 2),
    }
    return calls | (_attentions() if device == "cuda" else {})


def _attentions() -> dict[str, Callable[[], Any]]:
    """The entries that PyTorch has for CUDA tensors, forward and backward."""
    q, dy = (torch.randn(2, 4, 64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    aten = torch.ops.aten
    flash, cudnn = "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention"
    ahead = aten._scaled_dot_product_flash_attention(q, q, q)
    of_cudnn = aten._scaled_dot_product_cudnn_attention(q, q, q, None, True)
    return {
        flash: lambda: aten._scaled_dot_product_flash_attention(q, q, q),
        f"{flash}_backward": lambda: aten._scaled_dot_product_flash_attention_backward(
            dy, q, q, q, *ahead[:6], 0.0, False, *ahead[6:8]
        ),
        cudnn: lambda: aten._scaled_dot_product_cudnn_attention(q, q, q, None, True),
        f"{cudnn}_backward": lambda: aten._scaled_dot_product_cudnn_attention_backward(
            dy, q, q, q, *of_cudnn[:2], *of_cudnn[6:8], None, *of_cudnn[2:6], 0.0, False
        ),
    }


def _report(name: str, call: Callable[[], Any], memory: CudaMemory | EmulatedMemory) -> None:
    overload = next(item for item in OVERLOADS if item.name == name)
    native_us = _microseconds(call)
    plans = Plans(overload, memory, PathCounts())
    with _taken(plans):
        call()
        whole_us = _microseconds(call)
        (run,) = (found for found in plans._known.values() if isinstance(found, Run))
        left = PathCounts().of(name, "left")
        plans._known.update(dict.fromkeys(plans._known, left))
        left_us = _microseconds(call)
    device = torch.device("cuda", torch.cuda.current_device()) if memory.is_gpu else torch.device("cpu")
    allocate_us = sum(_allocation(new.shape, new.strides, new.dtype, device) for new in run.prepared.new)
    execute_us = sum(_execution(step, device) for step in run.prepared.steps) if memory.is_gpu else 0.0
    times = native_us, left_us, whole_us, allocate_us, execute_us, whole_us - allocate_us - execute_us
    print(f"{name:<48}{''.join(f'{time_us:>9.2f}' for time_us in times)}", flush=True)


@contextmanager
def _taken(plans: Plans) -> Iterator[None]:
    """The operation of ``plans`` is taken over."""
    name, key = plans.overload.name, plans.memory.dispatch_key
    library = torch.library.Library("aten", "IMPL")
    native = torch.library.get_kernel(f"aten::{name}", key).call_boxed
    library.impl(name, kernel(plans, native), key, with_keyset=True, allow_override=True)
    try:
        yield
    finally:
        library._destroy()


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
