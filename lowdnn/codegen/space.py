"""Index spaces: the element of each tensor at a coordinate, and merging of axes where all tensors allow it.

The offset of tensor t at a coordinate is ``sum(coordinate[a] * strides[t][a])`` elements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.tensor import Tensor, packed_strides


@dataclass(frozen=True)
class IndexSpace:
    """Extents of a space, and the strides of every tensor that is read or written over it.

    strides: by uid, in elements; 0 where the tensor repeats or the extent is 1.
    origin: for every axis, the axes of the DAG that were merged into it.
    indices: by uid, for tensors of random numbers: the strides of their elements' row-major indices.
    """

    extents: tuple[int, ...]
    strides: Mapping[int, tuple[int, ...]]
    origin: tuple[tuple[int, ...], ...]
    indices: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return len(self.extents)

    def permuted(self, order: tuple[int, ...]) -> IndexSpace:
        """The space whose axis ``i`` is axis ``order[i]`` of this one."""
        return IndexSpace(
            extents=tuple(self.extents[axis] for axis in order),
            strides={uid: tuple(strides[axis] for axis in order) for uid, strides in self.strides.items()},
            origin=tuple(self.origin[axis] for axis in order),
            indices={uid: tuple(row[axis] for axis in order) for uid, row in self.indices.items()},
        )


def space_of(dag: PointwiseDag) -> IndexSpace:
    """The DAG's own axes."""
    tensors = {t.uid: t for t in (*dag.loads, *dag.stores)}
    return IndexSpace(
        extents=dag.dims,
        strides={uid: strides_over(tensor, dag.dims) for uid, tensor in tensors.items()},
        origin=tuple((axis,) for axis in range(len(dag.dims))),
        indices={
            op.y.uid: strides_over(replace(op.y, strides=packed_strides(op.y.dims)), dag.dims) for op in dag.randoms
        },
    )


def strides_over(tensor: Tensor, dims: tuple[int, ...]) -> tuple[int, ...]:
    """The tensor's strides when it is broadcast to ``dims``."""
    if tensor.element_count == 1:
        return (0,) * len(dims)
    return tuple(
        0 if extent == 1 or own == 1 else stride
        for extent, own, stride in zip(dims, tensor.dims, tensor.strides, strict=True)
    )


def collapsed(space: IndexSpace, alone: Collection[int] = (), separate: Collection[int] = ()) -> IndexSpace:
    """The space without axes of extent 1, and with neighbouring axes merged where every tensor's strides allow it.

    alone: axes of the DAG that merge with none.  separate: axes that merge only with each other. The order of the axes
    does not change.
    """
    alone = frozenset(alone)
    extents: list[int] = []
    origin: list[tuple[int, ...]] = []
    columns: list[tuple[int, ...]] = []
    rows = (*space.strides.values(), *space.indices.values())
    for axis in range(space.rank):
        extent, own = space.extents[axis], space.origin[axis]
        column = tuple([row[axis] for row in rows])
        if extent == 1 and alone.isdisjoint(own):
            continue
        if origin and _may_merge(origin[-1], own, alone, separate) and _merges(columns[-1], column, extent):
            extents[-1] *= extent
            origin[-1] += own
            columns[-1] = column
        else:
            extents.append(extent)
            origin.append(own)
            columns.append(column)
    merged = [tuple([column[i] for column in columns]) for i in range(len(rows))]
    return IndexSpace(
        tuple(extents),
        strides=dict(zip(space.strides, merged, strict=False)),
        origin=tuple(origin),
        indices=dict(zip(space.indices, merged[len(space.strides) :], strict=True)),
    )


def with_axis(space: IndexSpace, position: int) -> IndexSpace:
    """The space with one more axis, of extent 1."""
    return IndexSpace(
        extents=(*space.extents[:position], 1, *space.extents[position:]),
        strides={uid: (*row[:position], 0, *row[position:]) for uid, row in space.strides.items()},
        origin=(*space.origin[:position], (), *space.origin[position:]),
        indices={uid: (*row[:position], 0, *row[position:]) for uid, row in space.indices.items()},
    )


def _may_merge(
    outer: tuple[int, ...], inner: tuple[int, ...], alone: frozenset[int], separate: Collection[int]
) -> bool:
    return alone.isdisjoint(outer) and alone.isdisjoint(inner) and (outer[0] in separate) == (inner[0] in separate)


def _merges(outer: tuple[int, ...], inner: tuple[int, ...], inner_extent: int) -> bool:
    return all(o == i * inner_extent for o, i in zip(outer, inner, strict=True))
