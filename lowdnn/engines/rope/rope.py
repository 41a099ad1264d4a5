"""``rope``: rotary position embedding and its gradient, for any float types and strides.

It is bound by memory: x is read once, y is written once, and the sines of a position are computed once for several
heads (``rope.cu``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod
from typing import TypeAlias

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.access import contiguous_elements
from lowdnn.engines.base import Anchors, Choices, Knob
from lowdnn.engines.indices import counter_type
from lowdnn.engines.launch import (
    ACCESS_BYTES,
    MAX_EXTENT,
    MAX_GRID_X,
    bytes_of,
    ceil_div,
    conversion_target,
    divider,
    fma_unit,
    i64,
    macros,
    target_label,
)
from lowdnn.engines.limits import alone
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rows.kernel import number
from lowdnn.engines.single_operation import SingleOperation
from lowdnn.enums import DataType, KnobType
from lowdnn.ops.rope import Rotation
from lowdnn.ops.rope_backward import RopeBackward
from lowdnn.ops.rope_forward import RopeForward
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer, Work

#: Threads of a block.
_THREADS = 128
#: Values of MULTIPLY: heads of a thread.
_HEADS = (1, 2, 4, 8)
#: Heads of a thread at most by default: with these, sines cost less than memory, and more would only cost registers.
_ENOUGH_HEADS = 4


RopeOperation: TypeAlias = RopeForward | RopeBackward


@dataclass(frozen=True)
class Params:
    """Compile-time parameters of the kernel; field names are its macros."""

    X: str
    Y: str
    FREQ: str
    COMPUTE: str
    THREADS: int
    HEADS: int
    VECTOR: int
    X_WIDTH: int
    Y_WIDTH: int
    FREQ_WIDTH: int
    INDEX: str


@dataclass(frozen=True)
class _Problem:
    """A rotation, with the vectors and the sizes of its kernel."""

    rotation: Rotation
    compute_type: DataType

    @staticmethod
    def of(operation: RopeOperation) -> _Problem:
        return _Problem(operation.rotation, operation.compute_type)

    @cached_property
    def vector(self) -> int:
        """Neighbouring pairs of a thread, which divide both the rotated and the passed ones."""
        pairs = gcd(self.rotation.size // 2, self.rotation.passed // 2)
        most = ACCESS_BYTES // min(self.rotation.source.element_bytes, self.rotation.target.element_bytes)
        return min(most, pairs & -pairs) if pairs else 1

    def radices(self, heads: int) -> tuple[int, ...]:
        """The numbers of batches, groups of heads, positions, and groups of pairs."""
        batch, all_heads, length, size = self.rotation.source.dims
        return batch, ceil_div(all_heads, heads), length, size // 2 // self.vector

    def knobs(self, arch: ArchSpec) -> tuple[Knob, ...]:
        """MULTIPLY, the heads of a thread; the default is the largest number with which every multiprocessor still has
        all its threads."""
        threads = arch.sm_count * arch.threads_per_sm
        values = [heads for heads in _HEADS if heads < 2 * self.rotation.source.dims[1]] or [1]
        full = [heads for heads in values if heads <= _ENOUGH_HEADS and prod(self.radices(heads)) >= threads]
        return (Knob("heads", KnobType.MULTIPLY, tuple(values), max(full or [1]), "heads of a thread"),)

    def refusal(self) -> str:
        radices = self.radices(1)
        if max(radices) > MAX_EXTENT:
            return f"tensor.dims: expected at most {MAX_EXTENT} groups along an axis, got {max(radices)}"
        blocks = ceil_div(prod(radices), _THREADS)
        return f"tensor.dims: expected at most {MAX_GRID_X} blocks, got {blocks}" if blocks > MAX_GRID_X else ""

    def kernel(self, heads: int, arch: ArchSpec) -> KernelRef:
        tensors = (self.rotation.source, self.rotation.target, self.rotation.freqs)
        x, y, freq = (dtypes.info(tensor.data_type) for tensor in tensors)
        params = Params(
            X=x.c_type,
            Y=y.c_type,
            FREQ=freq.c_type,
            COMPUTE=dtypes.info(self.compute_type).c_type,
            THREADS=_THREADS,
            HEADS=heads,
            VECTOR=self.vector,
            X_WIDTH=self._width(self.rotation.source),
            Y_WIDTH=self._width(self.rotation.target),
            FREQ_WIDTH=self._width(self.rotation.freqs),
            INDEX=counter_type(prod(self.radices(heads))),
        )
        target = conversion_target((tensor.data_type for tensor in tensors), arch)
        widths = f"x{params.X_WIDTH}y{params.Y_WIDTH}f{params.FREQ_WIDTH}"
        types = f"{x.short_name}_{y.short_name}_{freq.short_name}"
        shape = f"h{heads}v{self.vector}{widths}_{params.INDEX}"
        return KernelRef(
            name=f"rope_{types}_{shape}_{target_label(target)}",
            source="rope/rope.cu",
            target=target,
            parameters=macros(params),
        )

    def launch(self, heads: int) -> Launch:
        rotation, radices = self.rotation, self.radices(heads)
        x, y, freqs = rotation.source, rotation.target, rotation.freqs
        sizes = (prod(radices), x.dims[1], rotation.passed, rotation.size // 2)
        strides = (*x.strides, *y.strides, freqs.strides[0], freqs.strides[3])
        factors = (number(factor, self.compute_type) for factor in (rotation.scale, rotation.sine))
        axes = (field for radix in (1, *radices[1:]) for field in divider(radix))
        pointers = (TensorPointer(tensor.uid) for tensor in (x, freqs, y))
        return Launch(
            kernel=0,
            grid=(ceil_div(prod(radices), _THREADS), 1, 1),
            block=(_THREADS, 1, 1),
            arguments=(Struct((*pointers, *i64(sizes), *i64(strides), *factors, *axes)),),
            work=Work(flops=rotation.flops, bytes=bytes_of((x, freqs, y)), unit=fma_unit(self.compute_type)),
        )

    def _width(self, tensor: Tensor) -> int:
        """Elements of an access; 0 if those of a row are strided."""
        axis = tensor.rank - 1
        if tensor.strides[axis] != 1:
            return 0
        return min(self.vector, contiguous_elements(tensor, tensor.strides, axis))


class Rope(SingleOperation[RopeOperation]):
    """Rotary position embedding, as the module's docstring says."""

    name = "rope"
    index = 35
    anchors: Anchors = (RopeForward, RopeBackward)
    limits = alone(*anchors)
    expects = "one RopeForward or RopeBackward"

    def limit(self, operation: RopeOperation, arch: ArchSpec) -> str:
        """Limits the number of blocks, and of groups along an axis."""
        return _Problem.of(operation).refusal()

    def knobs_of(self, operation: RopeOperation, arch: ArchSpec) -> tuple[Knob, ...]:
        """MULTIPLY: the heads of a thread."""
        return _Problem.of(operation).knobs(arch)

    def launches(self, operation: RopeOperation, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch."""
        problem, heads = _Problem.of(operation), chosen[KnobType.MULTIPLY]
        return PlanParts([(problem.kernel(heads, arch), problem.launch(heads))])
