"""The data of a graph for tuning: every tensor in device memory, in as many copies as it takes to leave the L2 cache.

Inputs have numbers like those of a text case, so that a device draws the power of real work. Numbers that say where
rows are (offsets, lengths, indices) have values that fit. The caller's memory is copied and never written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.cases.data import real_values
from lowdnn.cases.naming import case_of
from lowdnn.cases.roles import values_by_role
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.memory import to_memory
from lowdnn.ops.rnn_operation import RecurrentOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.context import Context
from lowdnn.runtime.stream import Stream
from lowdnn.runtime.timing import slots_for
from lowdnn.runtime.workspace import ALIGNMENT_BYTES

#: Numbers drawn for a tensor; a larger one repeats them.
_DRAWN = 1 << 20
#: Types of numbers that may say where rows are.
_INDEX_TYPES = (DataType.INT32, DataType.INT64)
#: The part of the device's free memory that copies may take.
_SHARE = 0.5
#: Elements of an output that are compared, evenly spread.
_COMPARED = 1 << 20
#: Two right results differ by roundings: by at most this many units of the value,
_OF_VALUE = 3
#: and this many of the root mean square of all values.
_OF_MEAN = 7
#: The unit of operands rounded to TF32, and of partial sums rounded to bf16.
_UNIT = 2.0**-7


class TuningTensors:
    """The tensors of a graph that execute is given. Close it, or use ``with``.

    slots: copies of each.
    """

    def __init__(
        self,
        context: Context,
        graph: OperationGraph,
        stream: Stream,
        given: Mapping[int, int] | None = None,
        slots: int | None = None,
    ) -> None:
        """given: by uid, addresses of inputs that the caller has; the stream orders the copies behind its work.
        slots: number of copies, whether or not these leave the cache.

        Raises DeviceAllocationFailedError where the device lacks the memory for one copy.
        """
        self._context, self._graph, self._stream = context, graph, stream
        self._stack = ExitStack()
        self._by_value: dict[int, NDArray[Any]] = {}
        self._buffers: dict[int, DeviceBuffer] = {}
        stored = [t for t in graph.tensors.values() if not t.is_virtual and t.constant_value is None]
        tensors = [tensor for tensor in stored if not tensor.is_by_value]
        self.slots = slots or _slots(context, sum(_step_bytes(tensor) for tensor in tensors), _steps(graph))
        with self._stack:
            values = _values(graph, {tensor.uid for tensor in tensors if tensor.uid in (given or {})})
            for tensor in stored:
                if tensor.is_by_value:
                    self._by_value[tensor.uid] = _memory(tensor, values.get(tensor.uid))
                else:
                    self._allocate(tensor, values.get(tensor.uid), (given or {}).get(tensor.uid))
            self._given_values = {t.uid: given[t.uid] for t in stored if given and t.is_by_value and t.uid in given}
            self._stack = self._stack.pop_all()

    def addresses(self, uids: Sequence[int]) -> list[tuple[int, ...]]:
        """For each copy the addresses of these tensors; those of by-value ones are the host's."""
        return [tuple(self._address(uid, slot) for uid in uids) for slot in range(self.slots)]

    def forget_results(self) -> None:
        """Fills the first copy of each output with zeros."""
        for tensor in self._graph.outputs:
            self._first(tensor).fill_bytes(0, self._stream)

    def results(self) -> dict[int, NDArray[Any]]:
        """The memory of the first copy of each output by uid, once the stream has come to it."""
        return {tensor.uid: self._first(tensor).to_host(self._stream) for tensor in self._graph.outputs}

    def disagreement(self, ours: Mapping[int, NDArray[Any]], wanted: Mapping[int, NDArray[Any]]) -> str:
        """How far results are from others of the graph, where roundings do not explain it; otherwise empty."""
        for tensor in self._graph.outputs:
            wrong = _difference(ours[tensor.uid], wanted[tensor.uid], tensor.data_type)
            if wrong:
                return f"{tensor.label}: {wrong}"
        return ""

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> TuningTensors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _address(self, uid: int, slot: int) -> int:
        if uid in self._given_values:
            return self._given_values[uid]
        if uid in self._by_value:
            return int(self._by_value[uid].ctypes.data)
        return self._buffers[uid].address + slot * _step_bytes(self._graph.tensors[uid])

    def _allocate(self, tensor: Tensor, values: NDArray[Any] | None, address: int | None) -> None:
        step_bytes, size_bytes = _step_bytes(tensor), tensor.span_bytes
        buffer = DeviceBuffer.allocate(self._context, self.slots * step_bytes, label=tensor.label)
        self._buffers[tensor.uid] = self._stack.enter_context(buffer)
        if not size_bytes:
            return
        if self._graph.producer(tensor) is not None and values is None:
            buffer.fill_bytes(0, self._stream)
            return
        if address is None:
            buffer.copy_from_host(_memory(tensor, values), self._stream)
        first = buffer.address if address is None else address
        with self._context.activated():
            for slot in range(0 if address is not None else 1, self.slots):
                place = buffer.address + slot * step_bytes
                self._context.driver.memcpy_dtod_async(place, first, size_bytes, self._stream.handle)

    def _first(self, tensor: Tensor) -> DeviceBuffer:
        return self._buffers[tensor.uid].view(0, tensor.span_bytes)


def _slots(context: Context, copy_bytes: int, steps: int) -> int:
    """Copies that leave the cache, or as many as fit; at least one."""
    with context.activated():
        free_bytes, _ = context.driver.mem_get_info()
    return max(1, min(slots_for(copy_bytes, steps), int(_SHARE * free_bytes) // max(copy_bytes, 1)))


def _steps(graph: OperationGraph) -> int:
    """Steps of recurrent networks; 0 of other graphs."""
    recurrent = (operation.rnn for operation in graph.operations if isinstance(operation, RecurrentOperation))
    return sum(rnn.max_length * rnn.num_layers for rnn in recurrent)


def _step_bytes(tensor: Tensor) -> int:
    """From one copy to the next."""
    return -(-tensor.span_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _values(graph: OperationGraph, given: set[int]) -> dict[int, NDArray[Any]]:
    """Storage arrays by uid of the tensors that not any numbers will do for."""
    wanted = [t for t in graph.inputs if t.constant_value is None and t.uid not in given]
    if not any(tensor.data_type in _INDEX_TYPES and not tensor.is_by_value for tensor in wanted):
        return values_by_role(graph, seed=0)
    case = case_of(graph)
    values = case.inputs(0, exact=False)
    twins = zip(graph.tensors.values(), case.graph().tensors.values(), strict=True)
    return {tensor.uid: values[twin.uid] for tensor, twin in twins if twin.uid in values}


def _memory(tensor: Tensor, values: NDArray[Any] | None) -> NDArray[Any]:
    """The tensor's memory: ``values``, or numbers that repeat; a number passed by value is 1."""
    if values is not None:
        return to_memory(values, tensor)
    count = tensor.span_bytes // tensor.element_bytes
    if tensor.is_by_value:
        return dtypes.from_float64(np.ones(count), tensor.data_type)
    drawn = real_values(np.random.default_rng(tensor.uid), (min(count, _DRAWN),), tensor.data_type)
    return np.resize(drawn, count)


def _difference(ours: NDArray[Any], wanted: NDArray[Any], data_type: DataType) -> str:
    if np.array_equal(ours, wanted):
        return ""
    facts = dtypes.info(data_type)
    step = ours.size // facts.size_bytes // _COMPARED + 1
    got, expected = (dtypes.to_values(found.view(facts.storage)[::step], data_type) for found in (ours, wanted))
    if facts.kind is not dtypes.Kind.FLOAT:
        wrong = int(np.count_nonzero(got != expected))
        return f"{wrong} of {got.size} integers differ" if wrong else ""
    unit = max(_UNIT, facts.epsilon)
    size = np.sqrt(np.mean(np.square(expected[np.isfinite(expected)]))) if np.isfinite(expected).any() else 0.0
    with np.errstate(invalid="ignore"):  # infinities of both are equal
        near = np.abs(got - expected) <= unit * (_OF_VALUE * np.abs(expected) + _OF_MEAN * size)
    same = near | (got == expected) | (np.isnan(got) & np.isnan(expected))
    wrong = int(np.count_nonzero(~same))
    return f"{wrong} of {got.size} values differ, {got[~same][0]} for {expected[~same][0]}" if wrong else ""
