"""Problems of recurrent networks, an operation with the layout of its memory, and the plans made for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

from lowdnn import dtypes
from lowdnn.adv.lengths import LengthWriter
from lowdnn.adv.rnn_descriptors import RNNDataDescriptor, RNNDescriptor
from lowdnn.backend.at_hand import choice_at_hand
from lowdnn.backend.handle import Handle
from lowdnn.enums import DataType, HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate
from lowdnn.ops.base import Operation, inputs_of, outputs_of
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.ops.rnn_backward_weights import RnnBackwardWeights
from lowdnn.ops.rnn_forward import RnnForward
from lowdnn.ops.rnn_saved import reserve_space, reserve_space_bytes, saved_dims
from lowdnn.ops.rnn_tensors import SEQUENCES, dims_by_port, type_of
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.rnn_enums import RNNDataLayout
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.status import NotSupportedError

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

#: Most problems, and most networks, for which a handle keeps plans.
_MAX_PROBLEMS = 256
_PERSISTENT = "rnn_persistent"
#: The largest alignment in bytes that an engine needs.
MAX_ALIGNMENT = 16

#: Ports whose tensors do not have the network's data type.
_NUMBERS = ("seq_lengths", "dropout_seed", "dropout_offset")

Kind = type[RnnForward] | type[RnnBackwardData] | type[RnnBackwardWeights]
StateShape = tuple[tuple[int, ...], tuple[int, ...]]
#: Key of a network's plans: the network, the layout, the packed rows, and whether it trains.
_Sequences = tuple["SizedNetwork", RNNDataLayout, int, bool]


class SizedNetwork:
    """A network on sequences of one shape, and what follows from it alone.

    element_bytes: the size of an element.  row_sizes: elements of a row of x and of y.  states, cell_states: dims and
    strides.
    reserve: (port, offset in bytes) of what lies in a reserve space.
    persists: whether ``rnn_persistent`` runs the network wherever it takes it.
    """

    def __init__(self, rnn: Rnn, data_type: DataType, *, persists: bool) -> None:
        self.persists = persists
        self.element_bytes = dtypes.info(data_type).size_bytes
        self.rnn, self.data_type, self.row_sizes = rnn, data_type, (rnn.input_size, rnn.output_size)
        self.states, self.cell_states = self._shape(rnn.state_size), self._shape(rnn.hidden_size)
        self.reserve = tuple((port, saved.offset_bytes) for port, saved in reserve_space(rnn, data_type).items())
        self.reserve_bytes = reserve_space_bytes(rnn, data_type)

    def _shape(self, size: int) -> StateShape:
        dims = (self.rnn.pseudo_layers, self.rnn.batch_size, size)
        return dims, packed_strides(dims)


@dataclass(frozen=True)
class Problem:
    """An operation of ``kind``.

    packed_rows: rows of packed sequences, otherwise 0.  left_out: ports of tensors that are not there.
    alignment_bytes: the alignment of all addresses, in bytes.
    """

    kind: Kind
    network: SizedNetwork
    layout: RNNDataLayout
    packed_rows: int
    left_out: frozenset[str]
    alignment_bytes: int = MAX_ALIGNMENT
    is_training: bool = True
    is_added: bool = False
    padding_fill: float = 0.0

    def operation(self) -> RnnForward | RnnBackwardData | RnnBackwardWeights:
        rnn, tensors = self.network.rnn, self._tensors()
        if self.kind is RnnForward:
            return RnnForward.of(rnn, tensors, is_training=self.is_training, padding_fill=self.padding_fill)
        if self.kind is RnnBackwardData:
            return RnnBackwardData.of(rnn, tensors)
        return RnnBackwardWeights.of(rnn, tensors, is_added=self.is_added)

    def _tensors(self) -> Mapping[str, Tensor]:
        """The tensors by port; the uid of a tensor is the place of its port among all."""
        rnn, dims = self.network.rnn, dict(dims_by_port(self.network.rnn))
        rows = (self.packed_rows,) if self.packed_rows else (rnn.max_length, rnn.batch_size)
        for port in SEQUENCES:
            dims[port] = (*rows, rnn.input_size if port in ("x", "dx") else rnn.output_size)
        ports = [port for port in dims if port not in self.left_out]
        return {port: self._tensor(uid, port, dims[port]) for uid, port in enumerate(ports, start=1)}

    def _tensor(self, uid: int, port: str, dims: tuple[int, ...]) -> Tensor:
        data_type = type_of(port, self.network.data_type)
        is_swapped = port in SEQUENCES and self.layout is RNNDataLayout.BATCH_MAJOR_UNPACKED
        strides = packed_strides(dims, (1, 0, 2) if is_swapped else None)
        return Tensor(uid, data_type, dims, strides, self._alignment_bytes(port, data_type), name=port)

    def _alignment_bytes(self, port: str, data_type: DataType) -> int:
        size_bytes = dtypes.info(data_type).size_bytes
        if port in _NUMBERS:
            return size_bytes
        return MAX_ALIGNMENT if port in saved_dims(self.network.rnn) else max(self.alignment_bytes, size_bytes)


class PlannedProblem:
    """The plan of a problem on a handle's device; loaded at the first run."""

    def __init__(self, handle: Handle, problem: Problem) -> None:
        operation: Operation = problem.operation()
        self._ranking = handle.rank(OperationGraph((operation,)), HeurMode.A)
        best = self._ranking.best
        if best is None:
            why = self._ranking.explain()
            raise NotSupportedError.at("rnn", expected="an engine for this network", got="none", hint=why)
        wanted = self._ranking.candidates if problem.network.persists else ()
        persistent = (candidate for candidate in wanted if candidate.engine.name == _PERSISTENT)
        self._candidate: Candidate = next(persistent, None) or choice_at_hand(handle, best, switches=False)
        self._ports = {tensor.uid: port for port, tensor in (inputs_of(operation) | outputs_of(operation)).items()}
        self._loaded: LoadedPlan | None = None
        self._order: tuple[str, ...] = ()

    @property
    def engine(self) -> str:
        """The name of the engine that runs the problem."""
        return self._candidate.engine.name

    @property
    def workspace_bytes(self) -> int:
        return self._candidate.plan.workspace_bytes

    def prepared(self, handle: Handle) -> Callable[[Mapping[str, int], int], None]:
        """A launch of the plan into the handle's stream, on tensors at addresses by port, with a workspace."""
        if self._loaded is None:
            self._loaded = handle.load_candidate(self._candidate)
            self._order = tuple(self._ports[uid] for uid in self._loaded.uids)
        execute, order, stream = self._loaded.execute, self._order, handle.stream

        def run(addresses: Mapping[str, int], workspace: int) -> None:
            execute(tuple([addresses[port] for port in order]), workspace, stream)

        return run


class RnnPlans:
    """The plans that a handle keeps for recurrent networks."""

    def __init__(self) -> None:
        self._networks: dict[tuple[RNNDescriptor, int, int, bool], SizedNetwork] = {}
        self._planned: dict[Problem, PlannedProblem] = {}
        self._workspaces: dict[_Sequences, int] = {}
        self._lengths: LengthWriter | None = None

    def network(self, rnn_desc: RNNDescriptor, x_desc: RNNDataDescriptor, *, is_training: bool) -> SizedNetwork:
        """The network, one object for all calls on sequences of one shape, which may differ in their lengths."""
        key = (rnn_desc, x_desc.max_seq_length, x_desc.batch_size, is_training)
        found = self._networks.get(key)
        if found is None:
            rnn = rnn_desc.network(x_desc.max_seq_length, x_desc.batch_size, is_training=is_training)
            found = SizedNetwork(rnn, rnn_desc.data_type, persists=rnn_desc.persists)
            _keep(self._networks, key, found)
        return found

    def planned(self, handle: Handle, problem: Problem) -> PlannedProblem:
        """The plan, made at the first call with an equal problem. Raises NotSupportedError where no engine takes it."""
        found = self._planned.get(problem)
        if found is None:
            found = PlannedProblem(handle, problem)
            _keep(self._planned, problem, found)
        return found

    def fitting(self, handle: Handle, problem: Problem, available_bytes: int) -> PlannedProblem:
        """The plan of the problem that a workspace of ``available_bytes`` suffices for.

        Where the first choice needs more, it is the plan for tensors at the least aligned addresses, for which the
        sizes that were told have room.
        """
        planned = self.planned(handle, problem)
        if planned.workspace_bytes <= available_bytes:
            return planned
        return self.planned(handle, replace(problem, alignment_bytes=problem.network.element_bytes))

    def workspace_bytes(
        self, handle: Handle, network: SizedNetwork, x_desc: RNNDataDescriptor, *, is_training: bool
    ) -> int:
        """The workspace of the largest plan of those that the sequences' calls may have.

        Padded sequences may have other lengths then: JAX asks with the greatest ones.
        """
        key = network, x_desc.layout, packed_rows(x_desc), is_training
        found = self._workspaces.get(key)
        if found is None:
            problems = _problems(*key)
            found = max(self.planned(handle, problem).workspace_bytes for problem in problems)
            _keep(self._workspaces, key, found)
        return found

    def lengths(self, handle: Handle) -> LengthWriter:
        if self._lengths is None:
            self._lengths = LengthWriter(handle)
        return self._lengths


def packed_rows(x_desc: RNNDataDescriptor) -> int:
    """0 for padded sequences, and for packed ones that are as long as each other, which lie as padded ones do."""
    return x_desc.row_count if x_desc.is_packed and not x_desc.is_full else 0


def _problems(network: SizedNetwork, layout: RNNDataLayout, rows: int, is_training: bool) -> list[Problem]:
    """The problems that calls on the sequences may be, with tensors at the most and at the least aligned addresses."""
    kinds: tuple[Kind, ...] = (RnnForward, RnnBackwardData, RnnBackwardWeights) if is_training else (RnnForward,)
    without: tuple[frozenset[str], ...] = (frozenset(),) if rows else (frozenset(), frozenset(("seq_lengths",)))
    alignments = MAX_ALIGNMENT, network.element_bytes
    return [
        Problem(kind, network, layout, rows, left_out, alignment_bytes, is_training, is_added)
        for kind, left_out, alignment_bytes in product(kinds, without, alignments)
        for is_added in ((False, True) if kind is RnnBackwardWeights else (False,))
    ]


def _keep(known: dict[KeyT, ValueT], key: KeyT, value: ValueT) -> None:
    """Adds an entry, and drops the oldest one if there are too many: making it again costs less than tracking uses."""
    known[key] = value
    if len(known) > _MAX_PROBLEMS:
        del known[next(iter(known))]
