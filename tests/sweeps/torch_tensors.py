"""torch tensors in the layouts of a graph's tensors, and plans executed on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowdnn.backend.handle import Handle
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Plan
from lowdnn.runtime.workspace import Workspace


def integers(torch: Any, tensor: Tensor, largest: int) -> Any:
    """Integers of -largest to largest in bf16, in the tensor's logical dims and its strides."""
    memory = torch.randint(-largest, largest + 1, (_count(tensor),), device="cuda", dtype=torch.int8)
    return memory.bfloat16().as_strided(tensor.dims, tensor.strides)


def blank(torch: Any, tensor: Tensor) -> Any:
    """NaN everywhere, so that an element that nobody writes differs; bf16."""
    memory = torch.full((_count(tensor),), float("nan"), device="cuda", dtype=torch.bfloat16)
    return memory.as_strided(tensor.dims, tensor.strides)


def execute(torch: Any, handle: Handle, plan: Plan, tensors: Mapping[int, Any]) -> None:
    """Runs ``plan`` once on torch's tensors by uid, in torch's stream, and waits for it."""
    loaded = handle.load(plan)
    stream = torch.cuda.current_stream().cuda_stream
    with Workspace(handle.runtime.context, plan.workspace_bytes) as workspace:
        loaded.execute(tuple(tensors[uid].data_ptr() for uid in loaded.uids), workspace.address, stream)
        torch.cuda.synchronize()


def _count(tensor: Tensor) -> int:
    return tensor.span_bytes // tensor.element_bytes
