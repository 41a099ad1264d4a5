"""``divisive_normalization``: division of each element by a power of its neighbours' squares, and the gradient of that,
for any float types and strides.

It is bound by memory if windows are small: a block has a tile in shared memory and sums its windows along one axis
after the other (``divisive.cuh``). The gradient is one kernel if the reach of two windows fits shared memory. Otherwise
it is two, with dy s^-beta and dy x s^(-beta - 1) in the workspace.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors, Choices
from lowdnn.engines.launch import (
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
from lowdnn.enums import DataType
from lowdnn.ops.base import inputs_of, outputs_of
from lowdnn.ops.divisive_normalization import Divisive, DivisiveNormalizationBackward, DivisiveNormalizationForward
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.plan import Argument, KernelRef, Launch, Scalar, Struct, TensorPointer, Work, WorkspacePointer

#: Threads of a block.
_THREADS = 256
#: Tiles (d, h, w, channels) of packed planes, the preferred first.
_PLANES = ((1, 16, 32, 1), (1, 8, 32, 1), (1, 8, 8, 1), (1, 1, 1, 1))
#: Tiles (d, h, w, channels) of packed volumes, the preferred first.
_VOLUMES = ((4, 8, 32, 1), (4, 8, 8, 1), (2, 4, 4, 1), (1, 1, 1, 1))
#: Tiles (d, h, w, channels) of channels-last planes, the preferred first.
_CHANNEL_PLANES = ((1, 8, 8, 32), (1, 4, 8, 32), (1, 4, 4, 16))
#: Tiles (d, h, w, channels) of channels-last volumes, the preferred first.
_CHANNEL_VOLUMES = ((2, 4, 4, 32), (2, 4, 4, 16), (2, 2, 4, 8))


@dataclass(frozen=True)
class Params:
    """Compile-time parameters that all kernels have; field names are their macros. Macros of types are the ports'
    names."""

    COMPUTE: str
    WINDOW: int
    SPATIAL: int
    TILE_D: int
    TILE_H: int
    TILE_W: int
    TILE_C: int
    THREADS: int
    HAS_MEANS: int


@dataclass(frozen=True)
class _Tile:
    """A block's positions along d, h and w, and its channels; and the reach of windows along d, h and w."""

    extents: tuple[int, int, int, int]
    reach: tuple[int, int, int]

    def elements(self, times: int) -> int:
        """Elements of the tile extended by ``times`` the reach of its windows."""
        *positions, channels = self.extents
        return prod(position + times * more for position, more in zip(positions, self.reach, strict=True)) * channels

    @property
    def once(self) -> int:
        """Elements in shared memory of a kernel that sums windows once."""
        return 2 * self.elements(1)

    @property
    def twice(self) -> int:
        """Elements in shared memory of a kernel that sums windows of sums."""
        return 2 * self.elements(2) + self.elements(1)


@dataclass(frozen=True)
class _Problem:
    """An operation on an architecture, whose shared memory decides on the tiles."""

    operation: Divisive
    arch: ArchSpec

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return inputs_of(self.operation) | outputs_of(self.operation)

    @property
    def compute_type(self) -> DataType:
        return self.operation.compute_type

    @cached_property
    def dims(self) -> tuple[int, int, int, int, int]:
        """n, c, d, h, w; d is 1 for tensors of rank 4."""
        n, c, *spatial = self.operation.x.dims
        d, h, w = spatial if len(spatial) == 3 else (1, *spatial)
        return n, c, d, h, w

    @cached_property
    def _candidates(self) -> tuple[_Tile, ...]:
        x, reach = self.operation.x, self.operation.lrn_n - 1
        is_volume, has_channels_inside = x.rank == 5, x.strides[1] == 1 and x.dims[1] > 1
        inside = (_CHANNEL_VOLUMES if is_volume else _CHANNEL_PLANES) if has_channels_inside else ()
        reaches = (reach if is_volume else 0, reach, reach)
        return tuple(_Tile(extents, reaches) for extents in (*inside, *(_VOLUMES if is_volume else _PLANES)))

    @cached_property
    def once(self) -> _Tile:
        """The tile of kernels that sum windows once; the smallest one fits every device."""
        return next((tile for tile in self._candidates if self._bytes(tile.once) <= self._most), self._candidates[-1])

    @cached_property
    def twice(self) -> _Tile | None:
        """The tile of the gradient in one kernel; None if none fits."""
        return next((tile for tile in self._candidates if self._bytes(tile.twice) <= self._most), None)

    def limit(self) -> str:
        extent, blocks = max(self.operation.x.dims), prod(self._digits(self.once))
        if extent > MAX_EXTENT:
            return f"x.dims: expected at most {MAX_EXTENT} along an axis, got {extent}"
        return f"x.dims: expected at most {MAX_GRID_X} blocks, got {blocks}" if blocks > MAX_GRID_X else ""

    def forward(self) -> PlanParts:
        fields = (*self._source, *self._fields("y"))
        return PlanParts([self._step("divisive_forward", self.once, self.once.once, ("y",), fields)])

    def backward(self) -> PlanParts:
        """One launch, or two if windows reach too far."""
        if self.twice is not None:
            fields = (*self._source, *self._fields("dy"), *self._gradients)
            return PlanParts([self._step("divisive_backward", self.twice, self.twice.twice, ("dy", "dx"), fields)])
        parts, tile = PlanParts(), self.once
        size_bytes = self._bytes(self.operation.x.element_count)
        scaled, terms = (WorkspacePointer(parts.reserve(size_bytes)) for _ in range(2))
        packed = self._strides(packed_strides(self.operation.x.dims))
        pointer, *strides = self._fields("dy")
        first = (*self._source, pointer, scaled, terms, *strides, *packed)
        parts.add(*self._step("divisive_terms", tile, tile.once, ("dy", "dx"), first))
        last = (*self._source, scaled, terms, *packed, *self._gradients)
        parts.add(*self._step("divisive_combine", tile, tile.once, ("dx",), last))
        return parts

    @property
    def _most(self) -> int:
        """Bytes of shared memory of a block: half a multiprocessor's, so that one block loads while another sums."""
        return min(self.arch.shared_bytes_per_block, self.arch.shared_bytes_per_sm // 2)

    def _bytes(self, elements: int) -> int:
        return elements * dtypes.info(self.compute_type).size_bytes

    def _digits(self, tile: _Tile) -> tuple[int, ...]:
        """The numbers of images, and of tiles of channels and of positions along d, h, w."""
        n, *others = self.dims
        *positions, channels = tile.extents
        return n, *(ceil_div(extent, size) for extent, size in zip(others, (channels, *positions), strict=True))

    @property
    def _source(self) -> tuple[Argument, ...]:
        """The fields of ``Source``; without means, those are x's."""
        x, means = self.operation.x, self.operation.means or self.operation.x
        return (
            *(TensorPointer(tensor.uid) for tensor in (x, means)),
            *(field for tensor in (x, means) for field in self._strides(tensor.strides)),
        )

    @property
    def _gradients(self) -> tuple[Argument, ...]:
        """The fields of ``Gradients``; if the gradient of the means is not stored, its fields are dx's."""
        (dx, *dx_strides), (dm, *dm_strides) = self._fields("dx"), self._fields(self._second_gradient)
        slope = 2 * self.operation.lrn_beta * self._scale
        return dx, dm, *dx_strides, *dm_strides, number(slope, self.compute_type)

    @property
    def _second_gradient(self) -> str:
        return "dmeans" if "dmeans" in self.tensors else "dx"

    @property
    def _scale(self) -> float:
        return self.operation.lrn_alpha / float(self.operation.lrn_n) ** (self.operation.x.rank - 2)

    def _fields(self, port: str) -> tuple[Argument, ...]:
        tensor = self.tensors[port]
        return TensorPointer(tensor.uid), *self._strides(tensor.strides)

    def _strides(self, strides: tuple[int, ...]) -> tuple[Scalar, ...]:
        return i64(strides if len(strides) == 5 else (*strides[:2], 0, *strides[2:]))

    def _step(
        self, name: str, tile: _Tile, shared: int, ports: Iterable[str], fields: tuple[Argument, ...]
    ) -> tuple[KernelRef, Launch]:
        """A launch of the kernel ``name``.  shared: elements of shared memory.  ports: the tensors that it writes or
        reads besides the source, whose types are macros."""
        operation, digits = self.operation, self._digits(tile)
        factors = (self._scale, -operation.lrn_beta, operation.lrn_k)
        shape: tuple[Argument, ...] = (
            *i64(self.dims[1:]),
            *(number(factor, self.compute_type) for factor in factors),
            *(field for digit in digits for field in divider(digit)),
        )
        launch = Launch(
            kernel=0,
            grid=(prod(digits), 1, 1),
            block=(_THREADS, 1, 1),
            arguments=(Struct((*fields, *shape)),),
            shared_bytes=self._bytes(shared),
            work=Work(operation.flops, bytes_of(self.tensors.values()), fma_unit(self.compute_type)),
        )
        return self._kernel(name, tile, tuple(ports)), launch

    def _kernel(self, name: str, tile: _Tile, ports: tuple[str, ...]) -> KernelRef:
        operation = self.operation
        types = {"X": operation.x, "M": operation.means or operation.x}
        types |= {port.upper(): self.tensors[port] for port in ports}
        flags: dict[str, int] = {}
        if "dx" in ports:
            types["DM"] = self.tensors[self._second_gradient]
            flags["HAS_DMEANS"] = int("dmeans" in self.tensors)
        d, h, w, c = tile.extents
        params = Params(
            COMPUTE=dtypes.info(self.compute_type).c_type,
            WINDOW=operation.lrn_n,
            SPATIAL=operation.x.rank - 2,
            TILE_D=d,
            TILE_H=h,
            TILE_W=w,
            TILE_C=c,
            THREADS=_THREADS,
            HAS_MEANS=int(operation.means is not None),
        )
        facts = {macro: dtypes.info(tensor.data_type) for macro, tensor in types.items()}
        target = conversion_target((tensor.data_type for tensor in types.values()), self.arch)
        labels = "_".join(found.short_name for found in facts.values())
        shape = f"n{params.WINDOW}s{params.SPATIAL}m{params.HAS_MEANS}{flags.get('HAS_DMEANS', '')}_{d}x{h}x{w}x{c}"
        return KernelRef(
            name=f"{name}_{labels}_{shape}_{target_label(target)}",
            source=f"lrn/{name}.cu",
            target=target,
            parameters=(*((macro, found.c_type) for macro, found in facts.items()), *flags.items(), *macros(params)),
        )


class DivisiveNormalization(SingleOperation[Divisive]):
    """Divisive normalisation, as the module's docstring says."""

    name = "divisive_normalization"
    index = 47
    anchors: Anchors = (DivisiveNormalizationForward, DivisiveNormalizationBackward)
    limits = alone(*anchors)
    expects = "one DivisiveNormalizationForward or DivisiveNormalizationBackward"

    def limit(self, operation: Divisive, arch: ArchSpec) -> str:
        """Limits the extents and the number of blocks."""
        return _Problem(operation, arch).limit()

    def launches(self, operation: Divisive, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch, or two for a gradient whose windows reach far."""
        problem = _Problem(operation, arch)
        return problem.backward() if isinstance(operation, DivisiveNormalizationBackward) else problem.forward()
