"""``band_matrix``: a band expanded to its matrix, or a matrix contracted to its band (``band_matrix.cu``)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.space import IndexSpace, collapsed
from lowdnn.engines.base import BEHAVIOR_NOTES, Anchors, Choices, Knob, Refusal, accepted, plan_of, resolve_choices
from lowdnn.engines.launch import (
    ACCESS_BYTES,
    MAX_EXTENT,
    MAX_GRID_X,
    bytes_of,
    ceil_div,
    ceil_power,
    divider,
    i64,
    macros,
)
from lowdnn.engines.limits import alone, names_of
from lowdnn.enums import NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.contract_band_matrix import ContractBandMatrix
from lowdnn.ops.expand_band_matrix import ExpandBandMatrix
from lowdnn.plan import KernelRef, Launch, Plan, Scalar, ScalarType, Struct, TensorPointer, Work
from lowdnn.status import Status

BandOperation: TypeAlias = ExpandBandMatrix | ContractBandMatrix

_THREADS = 128


@dataclass(frozen=True)
class Params:
    """Compile-time parameters of the kernel; field names are its macros."""

    X: str
    Y: str
    SLOPE: int
    RANK: int
    THREADS: int
    VECTOR: int
    Y_WIDTH: int
    INDEX: str


@dataclass(frozen=True)
class Skew:
    """How the kernel walks over an operation's output: the outer axes, rows, columns; groups of ``vector`` columns."""

    operation: BandOperation
    space: IndexSpace
    vector: int

    @staticmethod
    def of(operation: BandOperation) -> Skew:
        axis, x, y = operation.axis, operation.x, operation.y
        others = [a for a in range(y.rank) if a not in (axis - 1, axis)]
        others.sort(key=lambda a: y.strides[a], reverse=True)
        space = IndexSpace(y.dims, {x.uid: x.strides, y.uid: y.strides}, tuple((a,) for a in range(y.rank)))
        kept = (axis - 1, axis)
        space = collapsed(space.permuted((*others, *kept)), alone=kept)
        return Skew(operation, space, min(ACCESS_BYTES // y.element_bytes, ceil_power(y.dims[axis])))

    @property
    def radices(self) -> tuple[int, ...]:
        return (*self.space.extents[:-1], ceil_div(self.space.extents[-1], self.vector))

    @property
    def refusal(self) -> str:
        extent, blocks = max(self.radices[1:]), ceil_div(prod(self.radices), _THREADS)
        if extent > MAX_EXTENT:
            return f"tensor.dims: expected at most {MAX_EXTENT} groups along an axis, got {extent}"
        return f"tensor.dims: expected at most {MAX_GRID_X} blocks, got {blocks}" if blocks > MAX_GRID_X else ""

    def params(self) -> Params:
        x, y = (dtypes.info(tensor.data_type).c_type for tensor in (self.operation.x, self.operation.y))
        return Params(
            X=x,
            Y=y,
            SLOPE=self.operation.skew[0],
            RANK=self.space.rank,
            THREADS=_THREADS,
            VECTOR=self.vector,
            Y_WIDTH=self._width if self.space.strides[self.operation.y.uid][-1] == 1 else 0,
            INDEX="u32" if prod(self.radices) < 2**31 else "i64",
        )

    def launch(self) -> Launch:
        x, y, axis = self.operation.x, self.operation.y, self.operation.axis
        sizes = (prod(self.radices), y.dims[axis], x.dims[axis], self.operation.skew[1])
        strides = (stride for tensor in (x, y) for stride in self.space.strides[tensor.uid])
        pad = Scalar(ScalarType.F64, float(self.operation.pad))
        axes = (field for radix in (1, *self.radices[1:]) for field in divider(radix))
        pointers = (TensorPointer(x.uid), TensorPointer(y.uid))
        return Launch(
            kernel=0,
            grid=(ceil_div(prod(self.radices), _THREADS), 1, 1),
            block=(_THREADS, 1, 1),
            arguments=(Struct((*pointers, *i64((*sizes, *strides)), pad, *axes)),),
            work=Work(bytes=bytes_of((x, y))),
        )

    @property
    def _width(self) -> int:
        y = self.operation.y
        width = min(self.vector, y.alignment_bytes // y.element_bytes)
        while any(stride % width for stride in self.space.strides[y.uid][:-1]):
            width //= 2
        return width


@dataclass(frozen=True)
class _Found:
    """The one operation of a graph."""

    operation: BandOperation


class BandMatrix:
    """See the module's docstring."""

    name = "band_matrix"
    index = 26
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.STRICT_NAN_PROP,)
    behavior_notes = BEHAVIOR_NOTES
    anchors: Anchors = (ContractBandMatrix, ExpandBandMatrix)
    limits = alone(ContractBandMatrix, ExpandBandMatrix)

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses everything but one such operation between tensors in device memory."""
        found = self._matched(graph)
        if isinstance(found, Refusal):
            return found
        reason = Skew.of(found.operation).refusal if found.operation.y.element_count else ""
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """None."""
        return ()

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """One launch, none where y is empty."""
        operation = accepted(self._matched(graph)).operation
        chosen = resolve_choices(self.name, (), choices)
        if not operation.y.element_count:
            return plan_of(self, graph, arch, chosen, (), ())
        skew = Skew.of(operation)
        return plan_of(self, graph, arch, chosen, (_kernel(skew.params(), operation),), (skew.launch(),))

    def precompiled(self) -> tuple[KernelRef, ...]:
        """None: too rare."""
        return ()

    def _matched(self, graph: OperationGraph) -> _Found | Refusal:
        operation = graph.operations[0]
        if len(graph.operations) != 1 or not isinstance(operation, BandOperation):
            names = names_of(graph.operations)
            return Refusal(self.name, f"operations: expected one band-matrix operation, got {names}")
        if operation.x.is_scalar_value or operation.y.is_virtual:
            return Refusal(self.name, "tensors: expected both in device memory, got a virtual one or a value")
        return _Found(operation)


def _kernel(params: Params, operation: BandOperation) -> KernelRef:
    x, y = (dtypes.info(tensor.data_type).short_name for tensor in (operation.x, operation.y))
    verb = "expand" if params.SLOPE < 0 else "contract"
    shape = f"r{params.RANK}_v{params.VECTOR}y{params.Y_WIDTH}_{params.INDEX}"
    return KernelRef(
        name=f"band_matrix_{verb}_{x}_{y}_{shape}_sm80",
        source="band_matrix/band_matrix.cu",
        target="sm_80",
        parameters=macros(params),
    )
