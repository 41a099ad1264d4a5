"""Runs plans on a device and compares the results with the oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn.arch.specs import SM_90A, ArchSpec
from lowdnn.cases import parse_case
from lowdnn.cases.compare import EXACT, Expected, expected_outputs
from lowdnn.cases.data import exact_values, real_values
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.base import Choices, Engine
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.memory import from_memory, to_memory
from lowdnn.ops.ragged import RaggedMove, RaggedStore
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Plan
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.workspace import Workspace
from tests.support.data import fresh_seed, poison
from tests.support.runtime import download, upload
from tests.support.tolerance import assert_close

#: One scheduling policy of each kind; every engine runs under each.
POLICIES = ("lockstep", "warp-serial(7)", "cta-reverse")
#: All in order, and in any order with copies that land early and a look for races.
ORDER_AND_RACES = ("lockstep", "fuzz(7),early,races")

#: The byte that fills the zone before a tensor in its buffer.
_ZONE_BYTE = 0xA5

Arrays = Mapping[int, NDArray[Any]]


def check_exact(
    runtime: Runtime,
    engine: Engine,
    graph: OperationGraph,
    *,
    length: int = 1,
    choices: Choices | None = None,
    arch: ArchSpec = SM_90A,
) -> Plan:
    """Integer data, of which sums of ``length`` products are exact, must match the oracle exactly; returns the plan."""
    return _check(
        runtime,
        engine,
        graph,
        arch,
        choices or {},
        draw=lambda rng, tensor: exact_values(rng, tensor.dims, tensor.data_type, length),
        expected=lambda plan, inputs: {uid: Expected(values, EXACT) for uid, values in evaluate(graph, inputs).items()},
    )


def check_close(
    runtime: Runtime,
    engine: Engine,
    graph: OperationGraph,
    *,
    length: int,
    choices: Choices | None = None,
    arch: ArchSpec = SM_90A,
) -> Plan:
    """Normally distributed data must come within the tolerance table; ``length`` as for ``tolerance_of``.

    Returns the plan.
    """
    return _check(
        runtime,
        engine,
        graph,
        arch,
        choices or {},
        draw=lambda rng, tensor: real_values(rng, tensor.dims, tensor.data_type),
        expected=lambda plan, inputs: expected_outputs(graph, inputs, plan.numerical_notes, length),
    )


def check_case(
    runtime: Runtime, engine: Engine, line: str, choices: Choices | None = None, arch: ArchSpec = SM_90A
) -> Plan:
    """Real-valued data of a text case must come within the tolerance table. Returns the plan."""
    case, seed = parse_case(line), fresh_seed()
    graph = case.graph()
    refusal = engine.refuse(graph, arch)
    assert refusal is None, str(refusal)
    plan = engine.plan(graph, arch, choices or {})
    inputs = case.inputs(seed, exact=False)
    check_outputs(runtime, plan, graph, inputs, case.length, f"seed {seed}, {case}")
    return plan


def check_outputs(
    runtime: Runtime, plan: Plan, graph: OperationGraph, inputs: Arrays, length: int, context: str = ""
) -> None:
    """The plan's outputs must come within the tolerance table; ``length`` as for ``tolerance_of``."""
    _compare(runtime, plan, graph, inputs, expected_outputs(graph, inputs, plan.numerical_notes, length), context)


def assert_outputs(
    found: Arrays, expected: Mapping[int, Expected], graph: OperationGraph, inputs: Arrays, context: str = ""
) -> None:
    """Asserts that outputs are near; rows of packed ones outside sequences must be as they were before the run."""
    stores = {op.y.uid: op for op in graph.operations if isinstance(op, RaggedStore)}
    for uid, wanted in expected.items():
        tensor, actual, values = graph.tensors[uid], found[uid], wanted.values
        label = f"{tensor.label}, {context}"
        if uid in stores:
            rows = is_of_sequences(stores[uid], inputs)
            others = np.ascontiguousarray(actual[:, :, ~rows])
            assert others.tobytes() == poison(others.size, tensor.data_type).tobytes(), f"{label}: other rows changed"
            actual, values = actual[:, :, rows], values[:, :, rows]
        assert_close(actual, values, tensor.data_type, wanted.allowed, label)


def run_plan(runtime: Runtime, plan: Plan, graph: OperationGraph, inputs: Arrays) -> dict[int, NDArray[Any]]:
    """The graph's outputs by uid, as storage arrays in logical dims.

    ``inputs``: the tensors that are read, in the same form. Outputs are poisoned before the run; bytes between an
    output's elements must stay as they were. Each tensor lies at the end of its buffer, behind bytes that must stay as
    they were, and is aligned to as much as it says and no more. Of packed tensors there is memory up to the end that
    their offsets say; of outputs, rows behind it are poison.
    """
    ends = _packed_ends(graph, inputs)
    tensors = [graph.tensors[item.uid] for item in plan.tensors]
    before = {tensor.uid: _memory_of(tensor, inputs, ends) for tensor in tensors}
    stored = {t.uid: _with_address(before[t.uid]) if t.uid in ends else before[t.uid] for t in tensors}
    buffers = {t.uid: _at_end(runtime, stored[t.uid], t) for t in tensors if not t.is_by_value}
    pointers = {
        tensor.uid: before[tensor.uid].ctypes.data
        if tensor.is_by_value
        else buffers[tensor.uid].address + tensor.alignment_bytes
        for tensor in tensors
    }
    with Workspace(runtime.context, plan.workspace_bytes) as workspace:
        runtime.load(plan).execute(pointers, workspace.address)
        after = {t.uid: _behind_zone(buffers[t.uid], before[t.uid], t) for t in tensors if not t.is_by_value}
    for buffer in buffers.values():
        buffer.close()
    return {t.uid: _result(t, before[t.uid], after[t.uid], ends) for t in graph.outputs}


def read_tensors(graph: OperationGraph) -> list[Tensor]:
    """The tensors whose values a run needs: inputs, and outputs that a convolution accumulates into."""
    accumulated = [op.output for op in graph.operations if isinstance(op, ConvolutionOperation) and op.beta != 0]
    return [tensor for tensor in graph.inputs if tensor.constant_value is None] + accumulated


def _check(
    runtime: Runtime,
    engine: Engine,
    graph: OperationGraph,
    arch: ArchSpec,
    choices: Choices,
    draw: Callable[[np.random.Generator, Tensor], NDArray[Any]],
    expected: Callable[[Plan, Arrays], dict[int, Expected]],
) -> Plan:
    refusal = engine.refuse(graph, arch)
    assert refusal is None, str(refusal)
    plan = engine.plan(graph, arch, choices)
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    inputs = {tensor.uid: _repeated(draw(rng, tensor), tensor) for tensor in read_tensors(graph)}
    _compare(runtime, plan, graph, inputs, expected(plan, inputs), f"seed {seed}, {plan.name}")
    return plan


def _compare(
    runtime: Runtime, plan: Plan, graph: OperationGraph, inputs: Arrays, expected: Mapping[int, Expected], context: str
) -> None:
    assert_outputs(run_plan(runtime, plan, graph, inputs), expected, graph, inputs, context)


def is_of_sequences(store: RaggedStore, inputs: Arrays) -> NDArray[np.bool_]:
    """A flag for each row of the packed tensor that is a row of a sequence."""
    rows = np.zeros(store.packed.dims[2], np.bool_)
    for _, place in store.sequences({"offsets": inputs[store.offsets.uid]}):
        rows[place] = True
    return rows


def _packed_ends(graph: OperationGraph, inputs: Arrays) -> dict[int, int]:
    """The number of rows of packed tensors that offsets describe, by uid."""
    moves = [op for op in graph.operations if isinstance(op, RaggedMove)]
    return {
        move.packed.uid: int(inputs[move.offsets.uid].max()) * move.multiplier // move.row_elements for move in moves
    }


def _in_memory(tensor: Tensor, ends: Mapping[int, int]) -> Tensor:
    """The tensor as it lies in memory; a packed one ends with its last sequence."""
    if tensor.uid not in ends:
        return tensor
    batch, heads, rows, size = tensor.dims
    return replace(tensor, dims=(batch, heads, min(rows, ends[tensor.uid]), size))


def _with_address(memory: NDArray[Any]) -> NDArray[Any]:
    """``memory``, with one element if it has none: packed tensors have an address even without rows."""
    return memory if memory.size else np.zeros(1, memory.dtype)


def _memory_of(tensor: Tensor, inputs: Arrays, ends: Mapping[int, int]) -> NDArray[Any]:
    """The tensor's memory: poison, with its values, where it has some, at its elements."""
    existing = _in_memory(tensor, ends)
    background = poison(existing.span_bytes // tensor.element_bytes, tensor.data_type)
    if tensor.uid not in inputs:
        return background
    values = inputs[tensor.uid]
    return to_memory(values[:, :, : existing.dims[2]] if tensor.uid in ends else values, existing, background)


def _at_end(runtime: Runtime, memory: NDArray[Any], tensor: Tensor) -> DeviceBuffer:
    """A buffer with ``memory`` behind a zone of as many bytes as the tensor is aligned to."""
    zone = np.full(tensor.alignment_bytes, _ZONE_BYTE, np.uint8)
    return upload(runtime, np.concatenate([zone, memory.view(np.uint8)]), tensor.label)


def _behind_zone(buffer: DeviceBuffer, before: NDArray[Any], tensor: Tensor) -> NDArray[Any]:
    """The tensor's memory after a run."""
    stored = download(buffer, np.uint8)
    zone, memory = np.split(stored, [tensor.alignment_bytes])
    assert (zone == _ZONE_BYTE).all(), f"{tensor.label}: bytes before it were written"
    return memory.view(before.dtype)[: before.size]


def _result(tensor: Tensor, before: NDArray[Any], after: NDArray[Any], ends: Mapping[int, int]) -> NDArray[Any]:
    existing = _in_memory(tensor, ends)
    result = from_memory(after, existing)
    blank = np.zeros(existing.dims, after.dtype)
    gaps = [to_memory(blank, existing, memory).tobytes() for memory in (before, after)]
    assert gaps[0] == gaps[1], f"{tensor.label}: bytes between its elements were written"
    if tensor.uid not in ends:
        return result
    whole = poison(tensor.element_count, tensor.data_type).reshape(tensor.dims)
    whole[:, :, : existing.dims[2]] = result
    return whole


def _repeated(values: NDArray[Any], tensor: Tensor) -> NDArray[Any]:
    """``values`` made equal along strides of 0."""
    first = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.strides)
    return np.array(np.broadcast_to(values[first], tensor.dims))
