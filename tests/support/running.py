"""Runs plans on a device and compares the results with the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lowdnn.arch.specs import SM_90A, ArchSpec
from lowdnn.cases import parse_case
from lowdnn.cases.compare import EXACT, Expected, expected_outputs
from lowdnn.cases.data import exact_values, real_values
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.base import Choices, Engine
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.ragged_pattern import packed_uids
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.memory import from_memory, to_memory
from lowdnn.ops.ragged import RaggedMove, RaggedStore
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Plan
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed, poison
from tests.support.runtime import download, upload
from tests.support.tolerance import assert_close

#: One scheduling policy of each kind; every engine runs under each.
POLICIES = ("lockstep", "warp-serial(7)", "cta-reverse")
#: All in order, and in any order with copies that land early and a look for races.
ORDER_AND_RACES = ("lockstep", "fuzz(7),early,races")

#: The byte that fills outputs and what lies between elements.
_POISON_BYTE = 0xCD
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
    they were, and is aligned to as much as it says and no more. Packed tensors have memory up to the end that their
    offsets say, unless others read them whole; rows of outputs behind it are poison.
    """
    with HeldPlan(runtime, plan, graph, inputs) as held:
        return held.run()


class HeldPlan:
    """A plan and its tensors on a device, as ``run_plan`` lays them out, for several runs; used with ``with``.

    elsewhere: the addresses of tensors, by uid, that are somewhere else, such as in memory of another device.
    """

    def __init__(
        self,
        runtime: Runtime,
        plan: Plan,
        graph: OperationGraph,
        inputs: Arrays,
        elsewhere: Mapping[int, int] | None = None,
    ) -> None:
        self._loaded = runtime.load(plan)
        self._graph, self._inputs, self._ends = graph, inputs, _packed_ends(graph, inputs)
        stores = {op.y.uid for op in graph.operations if isinstance(op, RaggedStore)}
        self._read_whole = stores - self._ends.keys()
        others = dict(elsewhere or {})
        tensors = [graph.tensors[item.uid] for item in plan.tensors if item.uid not in others]
        self._in_memory = [tensor for tensor in tensors if not tensor.is_by_value]
        self._before = {tensor.uid: self._memory(tensor) for tensor in tensors}
        self._buffers = {t.uid: upload(runtime, self._with_zone(t), t.label) for t in self._in_memory}
        self._pointers = others | {
            tensor.uid: self._before[tensor.uid].ctypes.data
            if tensor.is_by_value
            else self._buffers[tensor.uid].address + tensor.alignment_bytes
            for tensor in tensors
        }
        self._workspace = DeviceBuffer.allocate(runtime.context, plan.workspace_bytes, label="workspace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for memory in (self._workspace, *self._buffers.values()):
            memory.close()

    def run(self) -> dict[int, NDArray[Any]]:
        """The outputs; looks at the memory around each tensor."""
        return self._run(self._in_memory)

    def launch(self) -> None:
        """Launches alone; the device may run it later."""
        self._loaded.execute(self._pointers, self._workspace.address)

    def outputs(self) -> dict[int, NDArray[Any]]:
        """The results of the launches; looks at the memory around outputs alone."""
        return self._outputs(self._graph.outputs)

    def run_again(self, byte: int) -> dict[int, NDArray[Any]]:
        """The outputs of another run, before which they and the workspace are bytes ``byte``: neither has what a run
        before has left. Looks at the memory around outputs alone."""
        if self._workspace.size_bytes:
            self._workspace.fill_bytes(byte)
        for tensor in self._graph.outputs:
            self._before[tensor.uid] = self._memory(tensor, byte)
            self._buffers[tensor.uid].copy_from_host(self._with_zone(tensor))
        return self._run(self._graph.outputs)

    def _run(self, looked_at: Iterable[Tensor]) -> dict[int, NDArray[Any]]:
        self.launch()
        return self._outputs(looked_at)

    def _outputs(self, looked_at: Iterable[Tensor]) -> dict[int, NDArray[Any]]:
        after = {t.uid: _behind_zone(self._buffers[t.uid], self._before[t.uid], t) for t in looked_at}
        return {t.uid: _result(t, self._before[t.uid], after[t.uid], self._ends) for t in self._graph.outputs}

    def _memory(self, tensor: Tensor, byte: int = _POISON_BYTE) -> NDArray[Any]:
        """See ``_memory_of``. Rows that no sequence has are zeros where they are read, as the reference has them."""
        return _memory_of(tensor, self._inputs, self._ends, 0 if tensor.uid in self._read_whole else byte)

    def _with_zone(self, tensor: Tensor) -> NDArray[np.uint8]:
        """The tensor's memory behind a zone of as many bytes as it is aligned to."""
        memory = self._before[tensor.uid]
        if tensor.uid in self._ends:
            memory = _with_address(memory)
        return np.concatenate([np.full(tensor.alignment_bytes, _ZONE_BYTE, np.uint8), memory.view(np.uint8)])


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
    """The number of rows of packed tensors of which offsets say how much there is, by uid."""
    packed, ends = packed_uids(graph), dict[int, int]()
    for move in (op for op in graph.operations if isinstance(op, RaggedMove) and op.packed.uid in packed):
        end = int(inputs[move.offsets.uid].max()) * move.multiplier // move.row_elements
        ends[move.packed.uid] = max(end, ends.get(move.packed.uid, 0))
    return ends


def _in_memory(tensor: Tensor, ends: Mapping[int, int]) -> Tensor:
    """The tensor as it lies in memory; a packed one ends with its last sequence."""
    if tensor.uid not in ends:
        return tensor
    batch, heads, rows, size = tensor.dims
    return replace(tensor, dims=(batch, heads, min(rows, ends[tensor.uid]), size))


def _with_address(memory: NDArray[Any]) -> NDArray[Any]:
    """``memory``, with one element if it has none: packed tensors have an address even without rows."""
    return memory if memory.size else np.zeros(1, memory.dtype)


def _memory_of(tensor: Tensor, inputs: Arrays, ends: Mapping[int, int], byte: int) -> NDArray[Any]:
    """The tensor's memory: poison, with its values, where it has some, at its elements."""
    existing = _in_memory(tensor, ends)
    background = poison(existing.span_bytes // tensor.element_bytes, tensor.data_type, byte)
    if tensor.uid not in inputs:
        return background
    values = inputs[tensor.uid]
    return to_memory(values[:, :, : existing.dims[2]] if tensor.uid in ends else values, existing, background)


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
