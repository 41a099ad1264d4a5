"""``band_matrix``: expands a band to its matrix, or contracts a matrix to its band (``band_matrix.cu``)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.codegen.space import IndexSpace, collapsed
from lowdnn.engines.base import Anchors
from lowdnn.engines.indices import counter_type
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
from lowdnn.engines.limits import alone
from lowdnn.engines.single_operation import OneLaunch
from lowdnn.ops.contract_band_matrix import ContractBandMatrix
from lowdnn.ops.expand_band_matrix import ExpandBandMatrix
from lowdnn.plan import KernelRef, Launch, Scalar, ScalarType, Struct, TensorPointer, Work

BandOperation: TypeAlias = ExpandBandMatrix | ContractBandMatrix

#: Threads of a block.
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
    """The axes of an operation's output: the outer ones, rows, columns; columns are cut into groups of ``vector``."""

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
            INDEX=counter_type(prod(self.radices)),
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


class BandMatrix(OneLaunch[BandOperation]):
    """Conversions between bands and matrices, as the module's docstring says."""

    name = "band_matrix"
    index = 26
    anchors: Anchors = (ContractBandMatrix, ExpandBandMatrix)
    limits = alone(*anchors)
    expects = "one band-matrix operation"

    def limit(self, operation: BandOperation, arch: ArchSpec) -> str:
        """Limits the number of blocks, and of groups along an axis."""
        return Skew.of(operation).refusal

    def kernel(self, operation: BandOperation, arch: ArchSpec) -> KernelRef:
        """The kernel, which is the same on every device."""
        return _kernel(Skew.of(operation).params(), operation)

    def launch(self, operation: BandOperation) -> Launch:
        """The launch, with a thread for each group of a row's elements."""
        return Skew.of(operation).launch()


def _kernel(params: Params, operation: BandOperation) -> KernelRef:
    x, y = (dtypes.info(tensor.data_type).short_name for tensor in (operation.x, operation.y))
    verb = "expand" if params.SLOPE < 0 else "contract"
    shape = f"r{params.RANK}_v{params.VECTOR}y{params.Y_WIDTH}_{params.INDEX}"
    return KernelRef(
        name=f"band_matrix_{verb}_{x}_{y}_{shape}_sm80",
        source="band_matrix/band_matrix.cu",
        target=BASE_TARGET,
        parameters=macros(params),
    )
