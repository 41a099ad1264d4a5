"""Graphs of the classic calls: built from descriptors, planned once for each handle, run on the caller's memory."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from lowdnn import dtypes
from lowdnn.backend.at_hand import choice_at_hand
from lowdnn.backend.handle import Handle
from lowdnn.capi.descriptors import FilterDescriptor, TensorDescriptor
from lowdnn.capi.memory import Address, checked
from lowdnn.enums import DataType, HeurMode, PointwiseMode, ReduceTensorOp, ReshapeMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate
from lowdnn.ops.base import outputs_of
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation, is_backward
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.reshape import Reshape
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.workspace import Workspace, size_anywhere
from lowdnn.status import BadParamError, MisalignedPointerError, NotSupportedError, SizeInsufficientError

#: Most planned graphs of a handle; the least recently used one is dropped first.
_MAX_GRAPHS = 512
#: Most calls whose outcomes are remembered.
_MAX_CALLS = 4096
#: Most streams for which a handle keeps a workspace; the least recently used one is dropped first.
MAX_STREAMS = 16
#: The largest alignment in bytes that an engine needs.
MAX_ALIGNMENT = 16


class Builder:
    """Tensors and operations of one call, with the addresses of what lies in memory."""

    def __init__(self) -> None:
        self.operations: list[Any] = []
        self.pointers: dict[int, int] = {}
        # The memory of by-value tensors must live until the launch.
        self._values: list[ctypes.c_float | ctypes.c_double] = []
        self._uid = 0
        # The first tensor at each address, and the addresses at which there are also tensors of another layout.
        self._first: dict[int, Tensor] = {}
        self._relaid: set[int] = set()

    def tensor(self, of: TensorDescriptor | FilterDescriptor, address: Address, where: str) -> Tensor:
        """A tensor in memory that is read; vectors of channels become channels on the way.

        Raises NullPointerError, MisalignedPointerError below the element's size.
        """
        placed = self._placed(of.scalars, address, where)
        if placed.dims == of.dims:
            return placed
        tensor = self.virtual(of.dims, placed.data_type)
        self.operations.append(Reshape(placed, tensor, ReshapeMode.LOGICAL))
        return tensor

    def result(self, of: TensorDescriptor | FilterDescriptor, address: Address, where: str) -> Tensor:
        """A tensor in memory that is written; as ``tensor``."""
        placed = self._placed(of.scalars, address, where)
        if placed.dims == of.dims:
            return placed
        tensor = self.virtual(of.dims, placed.data_type)
        self.operations.append(Reshape(tensor, placed, ReshapeMode.LOGICAL))
        return tensor

    def check_in_place(self, where: str) -> None:
        """Raises BadParamError if a result has the address of a tensor with another layout."""
        if self._relaid:
            for uid in (tensor.uid for operation in self.operations for tensor in outputs_of(operation).values()):
                if self.pointers.get(uid) in self._relaid:
                    got = f"two at {self.pointers[uid]:#x}"
                    raise BadParamError.at(where, expected="one layout of a tensor that is replaced", got=got)

    def virtual(self, dims: tuple[int, ...], data_type: DataType) -> Tensor:
        """A tensor that no address has."""
        strides = [1] * len(dims)
        for axis in range(len(dims) - 2, -1, -1):
            strides[axis] = strides[axis + 1] * dims[axis + 1]
        return Tensor(self._next(), data_type, dims, tuple(strides), MAX_ALIGNMENT, is_virtual=True)

    def constant(self, value: float, rank: int, data_type: DataType) -> Tensor:
        """A number as a tensor of one element."""
        ones = (1,) * rank
        return Tensor(self._next(), data_type, ones, ones, MAX_ALIGNMENT, constant_value=value)

    def value(self, value: float, rank: int, data_type: DataType) -> Tensor:
        """A number of type FLOAT or DOUBLE that travels with the launch: other ones need no other plan."""
        ones = (1,) * rank
        tensor = Tensor(self._next(), data_type, ones, ones, MAX_ALIGNMENT, is_by_value=True)
        held = ctypes.c_double(value) if data_type is DataType.DOUBLE else ctypes.c_float(value)
        self._values.append(held)
        self.pointers[tensor.uid] = ctypes.addressof(held)
        return tensor

    def pointwise(
        self,
        mode: PointwiseMode,
        y: Tensor,
        *inputs: Tensor,
        alphas: tuple[float, ...] = (),
        parameters: Mapping[str, float] = MappingProxyType({}),
    ) -> Tensor:
        """Adds y = mode(alphas[0] * inputs[0], ...), or dx = mode(dy, x) for a gradient; returns y.

        inputs: x, b and t, or dy and x.  parameters: fields of ``Pointwise`` beside mode and compute type.
        """
        compute = compute_type_of(y.data_type, *(tensor.data_type for tensor in inputs))
        names = ("dy", "x") if is_backward(mode) else ("x", "b", "t")
        ports: dict[str, Any] = dict(zip(names, inputs, strict=False)) | {"dx" if is_backward(mode) else "y": y}
        scales: dict[str, Any] = dict(zip(("alpha1", "alpha2"), alphas, strict=False))
        arguments: dict[str, Any] = dict(parameters)
        self.operations.append(PointwiseOperation(Pointwise(mode, compute, **arguments), **ports, **scales))
        return y

    def store(
        self,
        write: Callable[[Tensor], None],
        of: TensorDescriptor | FilterDescriptor,
        address: Address,
        scales: tuple[float, float],
        where: str,
    ) -> None:
        """Adds y = alpha * result + beta * y. ``write`` adds what writes the result to the tensor that it is given."""
        if scales == (1.0, 0.0):
            write(self.result(of, address, where))
            return
        result = self.virtual(of.dims, compute_type_of(of.data_type))
        write(result)
        self.blend(result, of, address, scales, where)

    def assign(
        self, x: Tensor, of: TensorDescriptor | FilterDescriptor, address: Address, scales: tuple[float, float],
        where: str,
    ) -> None:  # fmt: skip
        """Adds y = alpha * x + beta * y, where x may repeat."""
        if scales == (1.0, 0.0):
            self.pointwise(PointwiseMode.IDENTITY, self.result(of, address, where), x)
        else:
            self.blend(x, of, address, scales, where)

    def blend(
        self, x: Tensor, of: TensorDescriptor | FilterDescriptor, address: Address, scales: tuple[float, float],
        where: str,
    ) -> None:  # fmt: skip
        """Adds y = alpha * x + beta * y, where x may repeat.

        There is another plan for beta 0, since y is not read then; otherwise one plan serves all numbers.
        """
        alpha, beta = scales
        y = self.result(of, address, where)
        compute = compute_type_of(x.data_type, y.data_type)
        if beta == 0:
            self.scaled(alpha, x, compute, y)
            return
        old = self.scaled(beta, self.tensor(of, address, where), compute)
        self.pointwise(PointwiseMode.ADD, y, self.scaled(alpha, x, compute), old)

    def scaled(self, factor: float, x: Tensor, compute: DataType, y: Tensor | None = None) -> Tensor:
        """Adds y = factor * x, where ``factor`` travels with the launch; returns y, by default a virtual tensor."""
        result = y or self.virtual(x.dims, compute)
        return self.pointwise(PointwiseMode.MUL, result, x, self.value(factor, x.rank, compute))

    def reduced(self, x: Tensor, y: Tensor, operator: ReduceTensorOp) -> Tensor:
        """Adds y = operator over the axes of x along which y has extent 1; returns y."""
        reduction = Reduction(operator, compute_type_of(x.data_type, y.data_type))
        self.operations.append(ReductionOperation(reduction, x, y))
        return y

    def without_nan(self, x: Tensor, instead: Tensor) -> Tensor:
        """Adds y = x where x is a number, else ``instead``; both may repeat. Returns y."""
        is_number = self.pointwise(PointwiseMode.CMP_EQ, self.virtual(x.dims, DataType.BOOLEAN), x, x)
        dims = tuple(map(max, x.dims, instead.dims))
        result = self.virtual(dims, compute_type_of(x.data_type, instead.data_type))
        return self.pointwise(PointwiseMode.BINARY_SELECT, result, x, instead, is_number)

    def holds(self, address: int) -> bool:
        """Whether a number that the builder keeps lies there."""
        return any(ctypes.addressof(value) == address for value in self._values)

    def _placed(self, of: TensorDescriptor, address: Address, where: str) -> Tensor:
        known = checked(address, where)
        size_bytes = dtypes.info(of.data_type).size_bytes
        if known % size_bytes:
            raise MisalignedPointerError.at(where, expected=f"a multiple of {size_bytes}", got=f"{known:#x}")
        alignment = min(known & -known, MAX_ALIGNMENT)
        tensor = Tensor(self._next(), of.data_type, of.dims, of.strides, max(alignment, size_bytes))
        self.pointers[tensor.uid] = known
        first = self._first.setdefault(known, tensor)
        if first is not tensor and _layout(first) != _layout(tensor):
            self._relaid.add(known)
        return tensor

    def _next(self) -> int:
        self._uid += 1
        return self._uid


@dataclass(frozen=True)
class Launched:
    """A launched call: the plan, the addresses of its tensors, and the builder, which keeps those of numbers.

    workspace: the caller's; None where none is needed, or where the handle's own memory stood in.
    """

    loaded: LoadedPlan
    pointers: tuple[int, ...]
    builder: Builder
    workspace: Address


class Planned:
    """One graph on one handle: its candidates, and the loaded plans by the candidate's index."""

    def __init__(self, handle: Handle, operations: tuple[Any, ...], mode: HeurMode) -> None:
        self._handle = ref(handle)  # the handle keeps this object
        self._ranking = handle.rank(OperationGraph(operations), mode)
        self._loaded: dict[int, LoadedPlan] = {}

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Best first."""
        return self._ranking.candidates

    def candidate(self, place: int, where: str) -> Candidate:
        """Raises NotSupportedError where there are not so many."""
        if place == 0 and self._first is not None:
            return self._first
        if place >= len(self.candidates):
            raise NotSupportedError.at(
                where,
                expected=f"one of {len(self.candidates)} plans for this problem",
                got=f"number {place + 1}",
                hint=self._ranking.explain(),
            )
        return self.candidates[place]

    @cached_property
    def _first(self) -> Candidate | None:
        """The first candidate by the handle's compile policy. It does not change later, since callers have been told
        its workspace size."""
        best, handle = self._ranking.best, self._handle()
        return best if best is None or handle is None else choice_at_hand(handle, best, switches=False)

    def loaded(self, handle: Handle, place: int, where: str) -> LoadedPlan:
        """The candidate's plan on the device of ``handle``, for which it was planned."""
        found = self._loaded.get(place)
        if found is None:
            found = self._loaded[place] = handle.load_candidate(self.candidate(place, where))
        return found


class Known(NamedTuple):
    """The outcome of a call, with references to the objects whose identities are in its key, so that these identities
    are not reused."""

    outcome: Any
    named: object


class KnownCalls:
    """The outcomes of calls, by their keys. Beyond ``_MAX_CALLS`` all are dropped. Several threads may use it."""

    def __init__(self) -> None:
        self._found: dict[Any, Known] = {}
        #: The facts of the call with a key; None where there are none.
        self.get: Callable[[Any], Known | None] = self._found.get

    def keep(self, key: Any, outcome: object, named: object) -> None:
        """named: objects that the key names by identity."""
        if len(self._found) >= _MAX_CALLS:
            self.clear()
        self._found[key] = Known(outcome, named)

    def clear(self) -> None:
        self._found.clear()


class Graphs:
    """The planned graphs of all handles, and the memory that calls without a workspace of the caller's use.

    known_calls: see ``calls.remembering``.
    """

    def __init__(self) -> None:
        self.known_calls = KnownCalls()
        self._planned: WeakKeyDictionary[Handle, OrderedDict[Any, Planned]] = WeakKeyDictionary()
        self._workspaces: WeakKeyDictionary[Handle, OrderedDict[int, Workspace]] = WeakKeyDictionary()

    def planned(self, handle: Handle, builder: Builder, mode: HeurMode = HeurMode.A) -> Planned:
        """The graph's candidates; worked out at the first call with equal operations."""
        known = self._planned.setdefault(handle, OrderedDict())
        key = (tuple(builder.operations), mode)
        found = known.get(key)
        if found is None:
            found = known[key] = Planned(handle, *key)
            if len(known) > _MAX_GRAPHS:
                known.popitem(last=False)
        else:
            known.move_to_end(key)
        return found

    def run(
        self,
        handle: Handle,
        builder: Builder,
        where: str,
        workspace: tuple[Address, int] | None = None,
        place: int = 0,
        mode: HeurMode = HeurMode.A,
        told_bytes: Callable[[], int] | None = None,
    ) -> Launched:
        """Launches the candidate at ``place`` into the handle's stream; tells how to launch it again.

        workspace: the caller's address and its bytes; the handle's own memory where it is left out, which grows at the
        first call that needs more, and is apart for each stream.

        told_bytes: the size that the caller was told, asked for where the workspace is too small for this plan. With so
        much of it the handle's own memory stands in, since alpha, beta and alignment, which the size does not depend
        on, may take another plan. Left out: too small a workspace is an error.
        """
        builder.check_in_place(where)
        loaded = self.planned(handle, builder, mode).loaded(handle, place, where)
        needed = size_anywhere(loaded.plan.workspace_bytes)
        pointers = tuple(builder.pointers[uid] for uid in loaded.uids)
        if workspace is not None and workspace[1] < needed and told_bytes is not None and workspace[1] >= told_bytes():
            workspace = None
        own = self.workspace(handle, needed, workspace, where)
        # Addresses may know the places of their arguments (``calls.remembering``); a launch takes plain integers.
        loaded.execute(tuple(map(int, pointers)), int(own), handle.stream)
        return Launched(loaded, pointers, builder, None if workspace is None or not needed else workspace[0])

    def forget(self, handle: Handle) -> None:
        """Gives back what is kept for a handle that is about to be closed."""
        self.known_calls.clear()
        self._planned.pop(handle, None)
        for workspace in self._workspaces.pop(handle, OrderedDict()).values():
            workspace.close()

    def workspace(self, handle: Handle, needed: int, given: tuple[Address, int] | None, where: str) -> int:
        """The address of ``needed`` bytes: the caller's, or the handle's own where none are given; 0 for none."""
        if needed == 0:
            return 0
        if given is not None:
            address, size_bytes = given
            if size_bytes < needed:
                raise SizeInsufficientError.at(
                    f"{where}.workSpaceSizeInBytes", expected=f"at least {needed}", got=size_bytes
                )
            return checked(address, f"{where}.workSpace")
        own = self._own_workspace(handle)
        own.grow(needed)
        return own.address

    def _own_workspace(self, handle: Handle) -> Workspace:
        """The handle's own memory for work in its stream."""
        context, stream = handle.runtime.context, handle.stream
        known = self._workspaces.setdefault(handle, OrderedDict())
        if stream not in known:
            if len(known) == MAX_STREAMS:
                # Work under way may use the memory.
                context.synchronize()
                known.popitem(last=False)[1].close()
            known[stream] = Workspace(context, 0)
        known.move_to_end(stream)
        return known[stream]


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_type, tensor.dims, tensor.strides


def compute_type_of(*data_types: DataType) -> DataType:
    """DOUBLE where FLOAT would round a value that is read or written, else FLOAT."""
    wide = (DataType.DOUBLE, DataType.INT32, DataType.INT64)
    return DataType.DOUBLE if any(data_type in wide for data_type in data_types) else DataType.FLOAT


def no_bytes() -> int:
    """The ``told_bytes`` of calls that accept a workspace of any size."""
    return 0
