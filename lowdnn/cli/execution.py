"""Running one graph once on a handle's device, with its data in the tensors' own strides."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.backend.handle import Handle
from lowdnn.bench.timing import execute_times
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.memory import from_memory, to_memory
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Plan
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.stream import Stream
from lowdnn.runtime.workspace import Workspace

Arrays = Mapping[int, NDArray[Any]]

#: The value of each byte of the outputs before a run, so that elements that are not written are found.
POISON_BYTE = 0xCD


@dataclass(frozen=True)
class Outcome:
    """Outputs by uid (storage arrays in logical dims), and the device's and the host's microseconds for one execute."""

    outputs: dict[int, NDArray[Any]]
    device_us: float
    host_us: float


def run_graph(handle: Handle, graph: OperationGraph, plan: Plan, inputs: Arrays, repeats: int = 1) -> Outcome:
    """Executes ``plan`` on ``inputs`` (storage arrays in logical dims) and copies the outputs back.

    The times are the medians of ``repeats`` further executes on the same data (0: none, and no times); outputs are
    those of the first.
    """
    loaded = handle.load(plan)
    context = handle.runtime.context
    with ExitStack() as stack:
        addresses: dict[int, int] = {}
        buffers: dict[int, DeviceBuffer] = {}
        keep_alive: list[NDArray[Any]] = []
        for planned in plan.tensors:
            tensor = graph.tensors[planned.uid]
            memory = _initial_memory(tensor, inputs.get(tensor.uid))
            if tensor.is_by_value:
                keep_alive.append(memory)
                addresses[tensor.uid] = memory.ctypes.data
                continue
            buffer = DeviceBuffer.allocate(context, memory.nbytes, label=tensor.label)
            buffers[tensor.uid] = stack.enter_context(buffer)
            buffer.copy_from_host(memory)
            addresses[tensor.uid] = buffer.address
        workspace = stack.enter_context(Workspace(context, plan.workspace_bytes))
        stream = stack.enter_context(Stream.create(context))

        def execute() -> None:
            loaded.execute(addresses, workspace.address, stream.handle)

        execute()
        stream.synchronize()
        outputs = {tensor.uid: _read(buffers[tensor.uid], tensor) for tensor in graph.outputs}
        if not repeats:
            return Outcome(outputs, 0.0, 0.0)
        device, host = execute_times(context, stream, execute, repeats)
    return Outcome(outputs, device.us, host.us)


def _initial_memory(tensor: Tensor, values: NDArray[Any] | None) -> NDArray[Any]:
    """The tensor's memory before the run. Bytes without a value, including gaps between elements, are POISON_BYTE."""
    count = tensor.span_bytes // tensor.element_bytes
    storage = np.dtype(np.uint8) if values is None else values.dtype
    poison = np.full(count * tensor.element_bytes, POISON_BYTE, np.uint8)
    return poison if values is None else to_memory(values, tensor, poison.view(storage))


def _read(buffer: DeviceBuffer, tensor: Tensor) -> NDArray[Any]:
    return from_memory(buffer.to_host().view(dtypes.info(tensor.data_type).storage), tensor)
