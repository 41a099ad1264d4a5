"""Peers for the benchmark cases: the same work through PyTorch (cuBLAS, cuDNN, its own kernels), on the same buffers.

A peer is a function that launches the work into torch's current stream. cuDNN runs in benchmark mode, so that its best
algorithm for the shape is taken; fp32 products may use TF32 on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from lowdnn.enums import DataType
from lowdnn.graph.cases import Case, ConvolutionCase, MatmulCase, PointwiseCase, ReductionCase
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.tensor import Tensor

Peer = Callable[[], object]

TORCH_TYPES = {
    DataType.DOUBLE: torch.float64,
    DataType.FLOAT: torch.float32,
    DataType.HALF: torch.float16,
    DataType.BFLOAT16: torch.bfloat16,
    DataType.INT8: torch.int8,
    DataType.INT32: torch.int32,
}
_REDUCTIONS = {"add": torch.sum, "max": torch.amax, "min": torch.amin, "avg": torch.mean}


def configure() -> None:
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = True


def device_tensor(tensor: Tensor) -> torch.Tensor:
    """Normal numbers in the tensor's type and strides (small integers for integer types)."""
    count = tensor.span_bytes // tensor.element_bytes
    dtype = TORCH_TYPES[tensor.data_type]
    if dtype.is_floating_point:
        flat = torch.randn(count, device="cuda", dtype=torch.float32).to(dtype)
    else:
        flat = torch.randint(-8, 8, (count,), device="cuda", dtype=dtype)
    return flat.as_strided(tensor.dims, tensor.strides)


def peers_of(
    case: Case, graph: OperationGraph, tensors: Mapping[int, torch.Tensor], bytes_moved: int
) -> dict[str, Peer]:
    """The peers of a case by name; ``bytes_moved`` is what a copy of equal traffic reads and writes."""
    inputs = {tensor.name: tensors[tensor.uid] for tensor in graph.inputs if tensor.uid in tensors}
    output = tensors[graph.outputs[-1].uid]
    if isinstance(case, ConvolutionCase):
        return {"cudnn": _convolution(case, inputs["x"], inputs["w"])}
    if isinstance(case, MatmulCase):
        return {"cublas": lambda: torch.matmul(inputs["a"], inputs["b"], out=output)}
    if isinstance(case, PointwiseCase):
        return {"copy": _copy(bytes_moved)}
    if isinstance(case, ReductionCase):
        return {"copy": _copy(bytes_moved), "torch": _reduction(case, inputs["x"])}
    raise TypeError(type(case).__name__)


def _convolution(case: ConvolutionCase, x: torch.Tensor, w: torch.Tensor) -> Peer:
    function = (torch.conv1d, torch.conv2d, torch.conv3d)[len(case.hw) - 1]
    padding = [before for before, _ in case.pad]
    return lambda: function(x, w, None, list(case.stride), padding, list(case.dil), case.groups)


def _reduction(case: ReductionCase, x: torch.Tensor) -> Peer:
    function = _REDUCTIONS[case.op]
    if function in (torch.amax, torch.amin):
        return lambda: function(x, dim=case.axes, keepdim=True)
    dtype = TORCH_TYPES[case.out or case.dtype]
    return lambda: function(x, dim=case.axes, keepdim=True, dtype=dtype)


def _copy(bytes_moved: int) -> Peer:
    # Whole MiB: the driver's copy is half as fast again at sizes that are a little over one.
    mebibytes = -(-bytes_moved // 2 // 2**20)
    source = torch.randint(0, 255, (mebibytes * 2**20,), device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)
