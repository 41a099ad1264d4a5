"""The axes of row kernels: the kept axes, the axes of a row, and the one of them that is cut into vectors.

A row is the set of elements that one statistic is taken over; the kept axes number the rows. ``RowSpace`` orders and
merges the axes, ``RowLayout`` cuts one of them into groups of neighbouring elements that a thread accesses at once.
"""

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

#: Elements of a group at most; more would cost registers.
_MAX_VECTOR = 8
#: Vectors of the shortest row that may have a skew. The elements outside its whole vectors are read one by one.
_MIN_SKEWED = 4
#: Groups of 16 bytes in a memory line of 128 bytes.
LINE_GROUPS = 8


@dataclass(frozen=True)
class RowSpace:
    """The axes of a row kernel: first ``kept`` kept axes, then those of a row; at least one of each."""

    space: IndexSpace
    kept: int
    #: Whether the vector axis is the last of a row; otherwise it is the last kept axis.
    is_row: bool
    #: Strides of the rows' starts, if a row may begin inside a vector (``codegen.functor``).
    skew: tuple[int, ...] = ()
    #: Neighbours along the last kept axis that share statistics (the channels of a normalisation group) and have one
    #: element for them all in the tensors of statistics.
    group_rows: int = 1

    @property
    def vector_axis(self) -> int:
        return self.space.rank - 1 if self.is_row else self.kept - 1

    @property
    def is_line(self) -> bool:
        """Whether a row has one axis, which is the vector axis."""
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
        """The functor that reads one number for each row."""
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
        """The functor that stores one number for each row."""
        dag = dag_of(tensor.dims, (), anchor=tensor)
        return generate(dag, accumulator=compute_type, vector_axis=self.kept - 1, space=self.kept_space, name=name)

    def load(self, tensor: Tensor, compute_type: DataType, name: str, copies: bool = False) -> Functor:
        """The functor that reads one number for each element."""
        return self.functor(reading(tensor), name, None, compute_type, copies)

    def vector(self, tensors: Iterable[Tensor]) -> int:
        """Elements of a group: 16 bytes of the narrowest of ``tensors`` that is contiguous along the vector axis.

        Without a skew they are fewer where a tensor's alignment requires it, and always divide the axis.
        """
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
        """The space with a skew if that gives wider groups, otherwise the space itself.

        Only rows with one axis can have a skew. It is that of the largest of ``tensors``, and all others that do not
        repeat over the rows must share it.
        """
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
    """The DAG that returns the elements of ``tensor``."""
    dag = dag_of(tensor.dims, (), result=tensor)
    return replace(dag, scalars=(tensor,)) if tensor.is_scalar_value else replace(dag, loads=(tensor,))


def row_space(
    dims: tuple[int, ...], axes: Collection[int], tensors: Iterable[Tensor], indexed: Collection[int] = ()
) -> RowSpace:
    """The space over ``dims`` whose rows run along ``axes``, with the strides of all tensors that a kernel accesses.

    The axes are in the order of the largest tensor's strides, and merged where all tensors allow it.
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
    dags: tuple[PointwiseDag, ...], axes: Collection[int], others: Iterable[Tensor], group_rows: int = 1
) -> RowSpace:
    """The ``row_space`` of DAGs over whole rows and of the ``others`` that their kernel reads or writes.

    group_rows: channels (axis 1) of a normalisation group, if rows are single channels.
    """
    tensors = (*(tensor for dag in dags for tensor in (*dag.loads, *dag.stores)), *others)
    in_memory = {tensor.uid: tensor for tensor in tensors if not tensor.is_virtual and not tensor.is_scalar_value}
    alone = _indexed_axes(dags) | ({1} if group_rows > 1 else set())
    space = row_space(dags[0].dims, axes, in_memory.values(), alone).skewed(in_memory.values())
    return replace(space, group_rows=group_rows) if space.space.origin[space.kept - 1] == (1,) else space


def _widest(tensors: Iterable[Tensor]) -> int:
    """Elements in 16 bytes of the narrowest of ``tensors``."""
    return min(_MAX_VECTOR, 16 // min((tensor.element_bytes for tensor in tensors), default=16))


def _indexed_axes(dags: Iterable[PointwiseDag]) -> set[int]:
    """The axes along which a GEN_INDEX needs the coordinate."""
    return {op.pointwise.axis for dag in dags for op in dag.operations if op.mode is PointwiseMode.GEN_INDEX}


@dataclass(frozen=True)
class RowLayout:
    """A space whose vector axis is cut into groups of ``vector`` elements.

    lines: strides of the rows' starts in kernels whose warps begin at memory lines, if a row may begin inside a line.
    """

    space: RowSpace
    vector: int
    lines: tuple[int, ...] = ()

    @staticmethod
    def of(space: RowSpace, dags: tuple[PointwiseDag, ...], *others: Tensor) -> RowLayout:
        """The layout with the widest groups that the tensors of ``dags`` and ``others`` allow."""
        tensors = (tensor for dag in dags for tensor in (*dag.loads, *dag.stores))
        return RowLayout(space, space.vector([*tensors, *others]))

    def with_misaligned_lines(self, sources: tuple[Tensor, ...]) -> RowLayout:
        """The layout with ``lines``, if ``sources`` is one tensor and some of its rows begin inside a memory line."""
        if len(sources) != 1 or not self.space.is_line:
            return self
        starts = self.space.skew or self.space.space.strides[sources[0].uid]
        are_misaligned = any(stride % (self.vector * LINE_GROUPS) for stride in starts[: self.space.kept])
        return replace(self, lines=starts) if are_misaligned else self

    @cached_property
    def radices(self) -> tuple[int, ...]:
        """The extents, with the vector axis in whole groups."""
        axis, extents = self.space.vector_axis, self.space.space.extents
        return (*extents[:axis], extents[axis] // self.vector, *extents[axis + 1 :])

    @cached_property
    def row_groups(self) -> int:
        """Groups of rows: the single rows or, where the vector axis is kept, ``vector`` neighbours each."""
        return prod(self.radices[: self.space.kept])

    @cached_property
    def groups(self) -> int:
        """Groups of one row."""
        return prod(self.radices[self.space.kept :])

    @property
    def index(self) -> str:
        """The C++ type of indices."""
        return counter_type(max(self.row_groups, self.groups))

    def read_bytes(self, tensors: Iterable[Tensor]) -> int:
        """The size of a functor's ``Loaded`` struct for one group of each of ``tensors``, in bytes."""
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
        """The reason why the kernels' indices do not reach all elements, or an empty string."""
        inner = (*self.radices[1 : self.space.kept], *self.radices[self.space.kept + 1 :])
        extent = max(inner, default=1)
        if extent > MAX_EXTENT:
            return f"x.dims: expected at most {MAX_EXTENT} groups along an axis, got {extent}"
        return ""
