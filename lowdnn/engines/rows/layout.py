"""How kernels over rows walk over a tensor: kept axes, axes of a row, and the axis that is cut into vectors."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from lowdnn.codegen.access import contiguous_elements
from lowdnn.codegen.functor import Functor, generate
from lowdnn.codegen.space import IndexSpace, collapsed, strides_over, with_axis
from lowdnn.engines.indices import counter_type
from lowdnn.engines.launch import MAX_EXTENT, bytes_touched, ceil_div, divider, i64
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.pattern import PointwiseDag, dag_of
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, Struct

#: Elements of a group: more would cost registers.
_MAX_VECTOR = 8
#: Vectors of a row from which on it may have a skew: what lies beside whole ones is read element by element.
_MIN_SKEWED = 4
#: Groups of a memory line: 128 bytes of 16.
LINE_GROUPS = 8


@dataclass(frozen=True)
class RowSpace:
    """Axes of the kernels: ``kept`` kept ones, then those of a row; at least one of each.

    is_row: the vector axis is the last of a row, otherwise the last kept one.
    skew: strides of the rows' starts, where these lie beside vectors (``codegen.functor``).
    joined: neighbours along the last kept axis that have their statistics together, with one element for them all.
    """

    space: IndexSpace
    kept: int
    is_row: bool
    skew: tuple[int, ...] = ()
    joined: int = 1

    @property
    def vector_axis(self) -> int:
        return self.space.rank - 1 if self.is_row else self.kept - 1

    @property
    def is_line(self) -> bool:
        """Whether rows have one axis, which is cut into vectors."""
        return self.is_row and self.kept + 1 == self.space.rank

    @cached_property
    def kept_space(self) -> IndexSpace:
        """The kept axes alone."""
        return self.space.permuted(tuple(range(self.kept)))

    @cached_property
    def row_space(self) -> IndexSpace:
        """The axes of a row alone."""
        return self.space.permuted(tuple(range(self.kept, self.space.rank)))

    @cached_property
    def count(self) -> int:
        """Elements of a row."""
        return prod(self.space.extents[self.kept :])

    def functor(
        self,
        dag: PointwiseDag,
        name: str,
        accumulator: DataType | None,
        result: DataType | None,
        copies: bool = False,
    ) -> Functor:
        """The functor of a DAG over whole rows."""
        return generate(
            dag,
            accumulator=accumulator,
            result=result,
            vector_axis=self.vector_axis,
            space=self.space,
            skew=self.skew,
            name=name,
            copies=copies,
        )

    def load_of_row(self, tensor: Tensor, compute_type: DataType, name: str, copies: bool = False) -> Functor:
        """The functor that reads one number of each row."""
        return generate(
            reading(tensor),
            accumulator=None,
            result=compute_type,
            vector_axis=self.kept - 1,
            space=self.kept_space,
            name=name,
            copies=copies,
        )

    def store_of_row(self, tensor: Tensor, compute_type: DataType, name: str) -> Functor:
        """The functor that stores one number of each row."""
        dag = dag_of(tensor.dims, (), anchor=tensor)
        return generate(dag, accumulator=compute_type, vector_axis=self.kept - 1, space=self.kept_space, name=name)

    def load(self, tensor: Tensor, compute_type: DataType, name: str, copies: bool = False) -> Functor:
        """The functor that reads one number of each element."""
        return self.functor(reading(tensor), name, None, compute_type, copies)

    def vector(self, tensors: Iterable[Tensor]) -> int:
        """Elements of a group: 16 bytes of the narrowest of ``tensors`` that is contiguous along the vector axis; where
        there is no skew fewer where an alignment says so, and they divide the axis."""
        axis, strides = self.vector_axis, self.space.strides
        contiguous = [tensor for tensor in tensors if strides[tensor.uid][axis] == 1]
        vector = _widest(contiguous)
        if self.skew:
            return vector
        for tensor in contiguous:
            elements = contiguous_elements(tensor, strides[tensor.uid], axis)
            if elements * tensor.element_bytes < 16:
                vector = min(vector, elements)
        while self.space.extents[axis] % vector:
            vector //= 2
        return vector

    def skewed(self, tensors: Iterable[Tensor]) -> RowSpace:
        """The space with a skew, where it makes wider groups of rows with one axis: that of the largest of
        ``tensors``, if all that do not repeat over the rows share it."""
        axis, strides = self.vector_axis, self.space.strides
        contiguous = [tensor for tensor in tensors if strides[tensor.uid][axis] == 1]
        whole = [tensor for tensor in contiguous if any(strides[tensor.uid][: self.kept])] or contiguous
        widest = _widest(contiguous)
        is_long = self.is_line and self.count >= _MIN_SKEWED * widest
        if not whole or not is_long or self.vector(contiguous) == widest:
            return self
        skew = strides[max(whole, key=bytes_touched).uid]
        is_shared = all(
            contiguous_elements(tensor, strides[tensor.uid], axis, skew) >= min(widest, 16 // tensor.element_bytes)
            for tensor in whole
        )
        return replace(self, skew=skew) if is_shared else self


def reading(tensor: Tensor) -> PointwiseDag:
    """The DAG that hands back the elements of ``tensor``."""
    dag = dag_of(tensor.dims, (), result=tensor)
    return replace(dag, scalars=(tensor,)) if tensor.is_scalar_value else replace(dag, loads=(tensor,))


def row_space(
    dims: tuple[int, ...], axes: Collection[int], tensors: Iterable[Tensor], indexed: Collection[int] = ()
) -> RowSpace:
    """The space over ``dims`` whose rows run over ``axes``, for all tensors that a kernel reads or writes over it.

    The axes are ordered by the largest tensor's strides, and merged where all tensors allow.
    indexed: axes whose coordinates are needed.
    """
    ordered = sorted(tensors, key=lambda tensor: -bytes_touched(tensor))
    strides = {tensor.uid: strides_over(tensor, dims) for tensor in ordered}
    space = IndexSpace(dims, strides, tuple((axis,) for axis in range(len(dims))))
    order = sorted(range(space.rank), key=lambda axis: tuple(-row[axis] for row in strides.values()))
    space = collapsed(space.permuted(tuple(order)), alone=indexed, separate=axes)
    is_kept = [not set(origin) & set(axes) for origin in space.origin]
    is_row = bool(is_kept) and not is_kept[-1]
    space = space.permuted(tuple(sorted(range(space.rank), key=lambda axis: not is_kept[axis])))
    kept = sum(is_kept)
    if kept == 0:
        space, kept = with_axis(space, 0), 1
    if kept == space.rank:
        space = with_axis(space, space.rank)
    return RowSpace(space, kept, is_row)


def fused_space(
    dags: tuple[PointwiseDag, ...], axes: Collection[int], others: Iterable[Tensor], joined: int = 1
) -> RowSpace:
    """The space of ``row_space`` for DAGs over whole rows and the ``others`` that their kernel reads or writes.

    joined: channels (axis 1) that have their statistics together, if rows are these.
    """
    tensors = (*(tensor for dag in dags for tensor in (*dag.loads, *dag.stores)), *others)
    in_memory = {tensor.uid: tensor for tensor in tensors if not tensor.is_virtual and not tensor.is_scalar_value}
    alone = _indexed_axes(dags) | ({1} if joined > 1 else set())
    space = row_space(dags[0].dims, axes, in_memory.values(), alone).skewed(in_memory.values())
    return replace(space, joined=joined) if space.space.origin[space.kept - 1] == (1,) else space


def _widest(tensors: Iterable[Tensor]) -> int:
    """Elements in 16 bytes of the narrowest of ``tensors``."""
    return min(_MAX_VECTOR, 16 // min((tensor.element_bytes for tensor in tensors), default=16))


def _indexed_axes(dags: Iterable[PointwiseDag]) -> set[int]:
    """The axes along which a GEN_INDEX needs the coordinate."""
    return {op.pointwise.axis for dag in dags for op in dag.operations if op.mode is PointwiseMode.GEN_INDEX}


@dataclass(frozen=True)
class RowLayout:
    """A space whose vector axis is cut into groups of ``vector`` elements.

    lines: strides of the rows' starts, where these may lie beside memory lines; for kernels whose warps begin at lines.
    """

    space: RowSpace
    vector: int
    lines: tuple[int, ...] = ()

    @staticmethod
    def of(space: RowSpace, dags: tuple[PointwiseDag, ...], *others: Tensor) -> RowLayout:
        """For what DAGs over whole rows and their kernel move of each element."""
        tensors = (tensor for dag in dags for tensor in (*dag.loads, *dag.stores))
        return RowLayout(space, space.vector([*tensors, *others]))

    def beside_lines(self, sources: tuple[Tensor, ...]) -> RowLayout:
        """The layout with ``lines``, where all is read of one tensor and its rows do not all begin at one."""
        if len(sources) != 1 or not self.space.is_line:
            return self
        starts = self.space.skew or self.space.space.strides[sources[0].uid]
        is_beside = any(stride % (self.vector * LINE_GROUPS) for stride in starts[: self.space.kept])
        return replace(self, lines=starts) if is_beside else self

    @cached_property
    def radices(self) -> tuple[int, ...]:
        """Extents, with the vector axis in groups: whole ones, of the row that has most."""
        axis, extents = self.space.vector_axis, self.space.space.extents
        return (*extents[:axis], extents[axis] // self.vector, *extents[axis + 1 :])

    @cached_property
    def row_groups(self) -> int:
        """Groups of rows that a thread owns one of: single rows, or ``vector`` neighbours."""
        return prod(self.radices[: self.space.kept])

    @cached_property
    def groups(self) -> int:
        """Groups of one row."""
        return prod(self.radices[self.space.kept :])

    @property
    def index(self) -> str:
        """The type of indices."""
        return counter_type(max(self.row_groups, self.groups))

    def read_bytes(self, tensors: Iterable[Tensor]) -> int:
        """The size of ``Loaded`` of a functor that copies a group of ``tensors``."""
        size_bytes, widest = 0, 1
        for tensor in tensors:
            is_single = not self.space.space.strides[tensor.uid][self.space.vector_axis]
            own_bytes = tensor.element_bytes * (1 if is_single else self.vector)
            alignment = min(own_bytes, 16)
            size_bytes = ceil_div(size_bytes, alignment) * alignment + own_bytes
            widest = max(widest, alignment)
        return ceil_div(size_bytes, widest) * widest

    def sizes(self, chunks: int) -> Struct:
        """``RowSizes`` of ``include/rows/rows.cuh``."""
        axes: tuple[Argument, ...] = tuple(
            field for radix in self.radices for field in divider(min(max(radix, 1), MAX_EXTENT))
        )
        starts, whole = (self.lines, self.vector * LINE_GROUPS) if self.lines else (self.space.skew, self.vector)
        skews = tuple(stride % whole for stride in starts) or (0,) * len(self.radices)
        elements = self.space.space.extents[self.space.vector_axis]
        return Struct((*i64((self.row_groups, self.groups, chunks, elements, *skews)), *axes))

    def refuse_size(self) -> str:
        """Why the kernels' indices do not reach all elements, or an empty string."""
        inner = (*self.radices[1 : self.space.kept], *self.radices[self.space.kept + 1 :])
        extent = max(inner, default=1)
        if extent > MAX_EXTENT:
            return f"x.dims: expected at most {MAX_EXTENT} groups along an axis, got {extent}"
        return ""
