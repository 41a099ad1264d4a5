"""Batch norms of several ranks, each with an emulated device, against the oracle over the whole batch."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.compare import expected_outputs
from lowdnn.driver import open_driver
from lowdnn.engines.norm.norm_rows import NormRows
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.peer_stats import HEADER_WORDS, peer_stat_dims
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.plan import Plan
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.sources import SourceTree
from tests.support.running import HeldPlan
from tests.support.tolerance import assert_close

Arrays = dict[int, NDArray[Any]]
ENGINE = NormRows()
#: Uids of peers' buffers; no case has so many tensors.
FIRST_UID = 1000


@dataclass(frozen=True)
class PeerCase:
    """``line``: a case of a batch norm that stands for one rank's part of the batch.  room: channels that buffers have
    room for beside those of x.  sm_count: multiprocessors for which it is planned; few make blocks walk over rows."""

    line: str
    ranks: int
    choices: tuple[tuple[Any, int], ...] = ()
    room: int = 0
    sm_count: int = SM_90A.sm_count

    @cached_property
    def graph(self) -> OperationGraph:
        """A rank's graph: the case's, with peers."""
        found = []
        for operation in parse_case(self.line).graph().operations:
            if isinstance(operation, NormForward | NormBackward):
                dims = peer_stat_dims(self.ranks, operation.x.dims[1] + self.room, operation.compute_type)
                uids = range(FIRST_UID, FIRST_UID + self.ranks)
                tensors = tuple(Tensor(uid, DataType.FLOAT, dims, packed_strides(dims), 16) for uid in uids)
                operation = replace(operation, peer_stats=tensors)
            found.append(operation)
        return OperationGraph(found)

    @cached_property
    def plan(self) -> Plan:
        arch, choices = replace(SM_90A, sm_count=self.sm_count), dict(self.choices)
        refusal = ENGINE.refuse(self.graph, arch)
        assert refusal is None, str(refusal)
        return ENGINE.plan(self.graph, arch, choices)

    @cached_property
    def whole(self) -> OperationGraph:
        """The graph over the whole batch, without peers."""
        graph: OperationGraph = self._whole_case.graph()
        return graph

    @property
    def streamed(self) -> Tensor:
        """y or dx."""
        return next(tensor for tensor in self.graph.outputs if tensor.dims[0] > 1 or tensor.dims[2:] != (1, 1))

    @property
    def buffer_bytes(self) -> int:
        return self.graph.tensors[FIRST_UID].span_bytes

    def drawn(self, seed: int) -> Arrays:
        return dict(self._whole_case.inputs(seed, exact=False))

    def part(self, arrays: Mapping[int, NDArray[Any]], rank: int) -> Arrays:
        """A rank's part of inputs or of results over the whole batch; what has no batch is everyone's."""
        batch = self.graph.operations[0].x.dims[0]  # type: ignore[attr-defined]
        return {
            uid: array[rank * batch : (rank + 1) * batch] if array.shape[:1] == (self.ranks * batch,) else array
            for uid, array in arrays.items()
        }

    def check(self, inputs: Arrays, found: list[Arrays]) -> None:
        """Asserts that the ranks' results are those of the whole batch, and statistics the same bits everywhere."""
        case = self._whole_case
        for uid, wanted in expected_outputs(self.whole, inputs, self.plan.numerical_notes, case.length).items():
            tensor = self.whole.tensors[uid]
            own = [one[uid] for one in found]
            if tensor.dims != self.graph.tensors[uid].dims:
                joined = np.concatenate(own)
            elif any(isinstance(op, NormBackward) for op in self.graph.operations):
                joined = sum(own[1:], start=own[0])  # each rank's own gradients
            else:
                joined = own[0]
                assert all(one.tobytes() == joined.tobytes() for one in own), f"{tensor.label}: ranks differ"
            assert_close(joined, wanted.values, tensor.data_type, wanted.allowed, f"{tensor.label}, {self.line}")

    @cached_property
    def _whole_case(self) -> Any:
        words = [
            f"dims={self.ranks * int(word[5:].split('x')[0])}x{word[5:].partition('x')[2]}"
            if word[:5] == "dims="
            else word
            for word in self.line.split()
        ]
        return parse_case(" ".join(words))


class Host:
    """``ranks`` emulated devices that reach each other's memory, with a buffer each."""

    def __init__(self, ranks: int, policy: str, sources: SourceTree | None = None, *, limit_ns: int = 10**10) -> None:
        self.owned = ExitStack()
        self.limit_ns = limit_ns
        driver = open_driver("emulated", policy=policy, devices=ranks)
        self.runtimes = [
            self.owned.enter_context(Runtime(driver, device=rank, sources=sources)) for rank in range(ranks)
        ]
        contexts = [runtime.context for runtime in self.runtimes]
        for own, peer in ((a, b) for a in contexts for b in contexts if a is not b):
            with own.activated():
                driver.context_enable_peer_access(peer.handle)

    def buffers(self, size_bytes: int) -> list[DeviceBuffer]:
        """New buffers of all ranks, in rank order."""
        found = []
        for rank, runtime in enumerate(self.runtimes):
            buffer = DeviceBuffer.allocate(runtime.context, size_bytes, label=f"buffer {rank}")
            content = np.zeros(size_bytes, np.uint8)
            header = struct.pack("<IIQ", rank, 0, self.limit_ns)
            content[: len(header)] = np.frombuffer(header, np.uint8)
            assert len(header) <= 4 * HEADER_WORDS
            buffer.copy_from_host(content)
            found.append(self.owned.enter_context(buffer))
        return found

    @contextmanager
    def held(self, case: PeerCase, inputs: Arrays, buffers: list[DeviceBuffer]) -> Iterator[list[HeldPlan]]:
        """The case's plan on each rank."""
        with ExitStack() as owned:
            found = []
            for rank, runtime in enumerate(self.runtimes):
                cyclic = [buffers[(rank + step) % case.ranks].address for step in range(case.ranks)]
                addresses = dict(enumerate(cyclic, FIRST_UID))
                held = HeldPlan(runtime, case.plan, case.graph, case.part(inputs, rank), addresses)
                found.append(owned.enter_context(held))
            yield found

    def run(self, case: PeerCase, inputs: Arrays, launches: int = 1) -> list[Arrays]:
        """The results of each rank, after some launches behind each other."""
        with self.held(case, inputs, self.buffers(case.buffer_bytes)) as ranks:
            for _ in range(launches):
                for one in ranks:
                    one.launch()
            return [one.outputs() for one in ranks]

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self.owned.close()
