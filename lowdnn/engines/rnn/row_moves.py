"""Launches of ``rnn_rows``: rows of sequences from one array to another."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import (
    ACCESS_BYTES,
    ceil_div,
    dependent_target,
    divider,
    i32,
    i64,
    is_dependent,
    macros,
    target_label,
)
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rnn.array import Array, address_of
from lowdnn.engines.rnn.network import Network
from lowdnn.engines.rows.kernel import number
from lowdnn.ops.rng import Rng
from lowdnn.plan import Argument, KernelRef, Launch, Struct, Work

_THREADS = 128


@dataclass(frozen=True)
class Params:
    """Macros of ``rnn_rows.cu``."""

    TYPE: str
    VECTOR: int
    FROM_PACKED: int
    TO_PACKED: int
    SHIFT: int
    DROPS: int
    THREADS: int


@dataclass(frozen=True)
class Move:
    """Rows of ``source`` into ``target``, each (T, B, elements) or packed.

    shift: the state before each step, -1 forwards and 1 backwards in time; ``first`` (B, elements) is that before a
    sequence's first step, 0 where it is None.  dropped_layer: the layer after which elements are dropped.
    """

    source: Array
    target: Array
    shift: int = 0
    first: Array | None = None
    dropped_layer: int | None = None

    @property
    def is_from_packed(self) -> bool:
        return len(self.source.dims) == 2

    @property
    def is_to_packed(self) -> bool:
        return len(self.target.dims) == 2

    @property
    def elements(self) -> int:
        return self.source.dims[-1]

    @property
    def vector(self) -> int:
        """Elements of an access."""
        vector = ACCESS_BYTES // self.source.element_bytes
        arrays = [array for array in (self.source, self.target, self.first) if array is not None]
        while self.elements % vector or not all(array.is_aligned(vector, *array.strides[:-1]) for array in arrays):
            vector //= 2
        return vector


def add_move(parts: PlanParts, network: Network, arch: ArchSpec, move: Move) -> None:
    """Adds the launch of ``move``."""
    parts.add(_kernel(network, arch, move), _launch(network, arch, move))


def _launch(network: Network, arch: ArchSpec, move: Move) -> Launch:
    rnn, vectors = network.rnn, move.elements // move.vector
    blocks = ceil_div(rnn.batch_size * vectors, _THREADS)
    moved_bytes = 2 * rnn.max_length * rnn.batch_size * move.elements * move.source.element_bytes
    return Launch(
        kernel=0,
        grid=(blocks * (rnn.max_length + move.is_to_packed), 1, 1),
        block=(_THREADS, 1, 1),
        arguments=(Struct(_fields(network, move, blocks, vectors)),),
        work=Work(bytes=moved_bytes),
        overlaps_previous=is_dependent(arch),
    )


def _fields(network: Network, move: Move, blocks: int, vectors: int) -> tuple[Argument, ...]:
    rnn, arrays = network.rnn, network.arrays
    optional = (move.first, network.lengths, arrays.get("dropout_seed"), arrays.get("dropout_offset"))
    of_layer = rnn.max_length * rnn.batch_size * rnn.output_size
    threshold = Rng(probability=1 - rnn.dropout_probability).threshold
    return (
        move.source.pointer,
        move.target.pointer,
        *(address_of(array) for array in optional),
        *i64(_strides(move.source)),
        *i64(_strides(move.target)),
        *i64((move.first.strides[0] if move.first else 0, threshold, (move.dropped_layer or 0) * of_layer)),
        *i64((move.target.dims[0],)),
        number(rnn.dropout_scale, network.compute_type),
        *i32((rnn.max_length, rnn.batch_size, move.elements)),
        *divider(blocks),
        *divider(vectors),
    )


def _strides(array: Array) -> tuple[int, int]:
    """Strides along steps and along sequences; rows of a packed array lie one sequence apart."""
    return (0, array.strides[0]) if len(array.dims) == 2 else (array.strides[0], array.strides[1])


def _kernel(network: Network, arch: ArchSpec, move: Move) -> KernelRef:
    facts, target = dtypes.info(network.data_type), dependent_target(arch)
    params = Params(
        TYPE=facts.c_type,
        VECTOR=move.vector,
        FROM_PACKED=int(move.is_from_packed),
        TO_PACKED=int(move.is_to_packed),
        SHIFT=move.shift,
        DROPS=int(move.dropped_layer is not None),
        THREADS=_THREADS,
    )
    form = f"p{params.FROM_PACKED}{params.TO_PACKED}_s{move.shift + 1}_d{params.DROPS}"
    return KernelRef(
        name=f"rnn_rows_{facts.short_name}_v{move.vector}_{form}_{target_label(target)}",
        source="rnn/rnn_rows.cu",
        target=target,
        parameters=macros(params),
    )
