"""Runs plans on the emulated machine: tensors in, stored outputs back, with poisoned outputs and an unwritten workspace."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.driver.emulated.machine import Function, Machine
from lowdnn.driver.emulated.memory import Arena
from lowdnn.driver.emulated.policy import Policy
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Plan
from lowdnn.runtime.compile import compile_source
from lowdnn.runtime.parameters import ParameterBlock
from lowdnn.runtime.sources import SourceTree

#: One policy of each kind; every engine runs under each.
POLICIES = ("lockstep", "warp-serial(7)", "cta-reverse")

Arrays = Mapping[int, NDArray[Any]]


def run_plan(plan: Plan, graph: OperationGraph, inputs: Arrays, policy: str = "lockstep") -> dict[int, NDArray[Any]]:
    """Executes ``plan`` on fresh memory.

    inputs: for each tensor that is read, an array of its data type's storage in its logical dims; outputs of the graph
    are read where they are given. Returns the graph's outputs in the same form. Elements between the strides of an
    output must stay untouched.
    """
    machine = Machine(Arena(), policy=Policy.parse(policy))
    memory = machine.memory
    tensors = [graph.tensors[item.uid] for item in plan.tensors]
    given = {tensor.uid: _lay_out(tensor, inputs.get(tensor.uid)) for tensor in tensors}
    hosts = {t.uid: np.ascontiguousarray(inputs[t.uid]).reshape(-1) for t in tensors if t.is_by_value}
    addresses = {
        tensor.uid: hosts[tensor.uid].ctypes.data if tensor.is_by_value else _upload(memory, given[tensor.uid])
        for tensor in tensors
    }
    block = ParameterBlock(plan)
    for index, tensor in enumerate(tensors):
        block.patch(block.tensor_slots[index], addresses[tensor.uid])
    block.patch(block.workspace_slots, memory.allocate(plan.workspace_bytes) if plan.workspace_bytes else 0)
    block.patch_values(tuple(addresses[tensor.uid] for tensor in tensors))
    for number, launch in enumerate(plan.launches):
        function = _function(machine, plan.kernels[launch.kernel])
        arguments = block.arguments_of(number, tuple(parameter.size for parameter in function.parameters))
        machine.launch(function, launch.grid, launch.block, launch.shared_bytes, launch.cluster, arguments)
    return {t.uid: _download(memory, t, addresses[t.uid], given[t.uid]) for t in graph.outputs}


def strided_view(tensor: Tensor, flat: NDArray[Any]) -> NDArray[Any]:
    """The tensor's logical array inside its flat memory."""
    steps = tuple(stride * flat.itemsize for stride in tensor.strides)
    return np.lib.stride_tricks.as_strided(flat, tensor.dims, steps)


@cache
def _ptx(kernel: KernelRef) -> str:
    return compile_source(SourceTree().read(kernel)).decode().rstrip("\0")


def _function(machine: Machine, kernel: KernelRef) -> Function:
    return machine.load(_ptx(kernel)).functions[kernel.name]


def _lay_out(tensor: Tensor, values: NDArray[Any] | None) -> NDArray[Any]:
    """The tensor's memory: poison, with ``values`` at its elements."""
    storage = dtypes.info(tensor.data_type).storage
    flat = np.full(tensor.span_bytes, 0xCD, np.uint8).view(storage)
    if values is not None and tensor.element_count:
        strided_view(tensor, flat)[...] = values
    return flat


def _upload(memory: Arena, flat: NDArray[Any]) -> int:
    address = memory.allocate(max(flat.nbytes, 1))
    if flat.nbytes:
        memory.host_write(address, flat.view(np.uint8))
    return address


def _download(memory: Arena, tensor: Tensor, address: int, before: NDArray[Any]) -> NDArray[Any]:
    if not tensor.element_count:
        return np.empty(tensor.dims, before.dtype)
    after = memory.host_read(address, tensor.span_bytes).view(before.dtype)
    result = strided_view(tensor, after).copy()
    strided_view(tensor, after)[...] = 0
    gaps = before.copy()
    strided_view(tensor, gaps)[...] = 0
    assert after.tobytes() == gaps.tobytes(), f"{tensor.label}: bytes between its elements were written"
    return result
