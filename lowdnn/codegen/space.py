"""Index spaces: which element of each tensor belongs to a coordinate, and how axes are merged where all tensors allow.

The offset of tensor t at a coordinate is ``sum(coordinate[a] * strides[t][a])`` elements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.tensor import Tensor


@dataclass(frozen=True)
class IndexSpace:
    """Extents of a space, and the strides of every tensor that is read or written over it.

    strides: by uid, in elements; 0 where the tensor repeats or the extent is 1.
    origin: for every axis, the axis of the DAG that it stands for, or -1 for several merged into one.
    """

    extents: tuple[int, ...]
    strides: Mapping[int, tuple[int, ...]]
    origin: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.extents)

    def permuted(self, order: tuple[int, ...]) -> IndexSpace:
        """The space whose axis ``i`` is axis ``order[i]`` of this one; axes left out must have extent 1."""
        return IndexSpace(
            extents=tuple(self.extents[axis] for axis in order),
            strides={uid: tuple(strides[axis] for axis in order) for uid, strides in self.strides.items()},
            origin=tuple(self.origin[axis] for axis in order),
        )


def space_of(dag: PointwiseDag) -> IndexSpace:
    """The DAG's own axes."""
    tensors = {t.uid: t for t in (*dag.loads, *dag.stores)}
    return IndexSpace(
        extents=dag.dims,
        strides={uid: strides_over(tensor, dag.dims) for uid, tensor in tensors.items()},
        origin=tuple(range(len(dag.dims))),
    )


def strides_over(tensor: Tensor, dims: tuple[int, ...]) -> tuple[int, ...]:
    """The tensor's strides as it repeats to ``dims``."""
    if tensor.element_count == 1:
        return (0,) * len(dims)
    return tuple(
        0 if extent == 1 or own == 1 else stride
        for extent, own, stride in zip(dims, tensor.dims, tensor.strides, strict=True)
    )


def collapsed(space: IndexSpace, kept: Collection[int] = ()) -> IndexSpace:
    """The space without axes of extent 1, and with neighbouring axes merged where every tensor's strides allow it.

    Axes whose origin is in ``kept`` stay alone. The order of the axes does not change; the rank is at least 1.
    """
    axes = [a for a in range(space.rank) if space.extents[a] != 1 or space.origin[a] in kept]
    if not axes:
        return IndexSpace((1,), dict.fromkeys(space.strides, (0,)), (-1,))
    extents: list[int] = []
    origin: list[int] = []
    columns: list[list[int]] = []
    rows = tuple(space.strides.values())
    for axis in axes:
        extent, column = space.extents[axis], [row[axis] for row in rows]
        alone = space.origin[axis] in kept or (bool(origin) and origin[-1] in kept)
        mergeable = (
            all(outer == inner * extent for outer, inner in zip(columns[-1], column, strict=True)) if columns else False
        )
        if mergeable and not alone:
            extents[-1] *= extent
            origin[-1] = -1
            columns[-1] = column
        else:
            extents.append(extent)
            origin.append(space.origin[axis])
            columns.append(column)
    strides = {uid: tuple(column[i] for column in columns) for i, uid in enumerate(space.strides)}
    return IndexSpace(tuple(extents), strides, tuple(origin))


def _merges(outer: list[int], inner: list[int], inner_extent: int) -> bool:
    return all(o == i * inner_extent for o, i in zip(outer, inner, strict=True))
