"""The output of a convolution as rows of pixels by columns of channels, and the part of one class."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from lowdnn.codegen.functor import Functor
from lowdnn.codegen.space import IndexSpace, collapsed, space_of, with_axis
from lowdnn.engines.conv.wgmma.im2col import PixelClass
from lowdnn.engines.gemm.output_space import OutputSpace
from lowdnn.engines.launch import divider, i32
from lowdnn.enums import PointwiseMode
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.plan import Argument, Struct, TensorPointer

_CHANNEL_AXIS = 1


def pixel_rows(dag: PointwiseDag, groups: int, *, in_parts: bool) -> OutputSpace:
    """Rows (group, image, pixel) by channels of a group; the axis of groups exists if there are several.

    Axes are merged where every tensor allows it, except if the space is used ``in_parts``.
    """
    return _pixel_rows(dag, groups, alone=range(len(dag.dims)) if in_parts else {_CHANNEL_AXIS})


def line_rows(dag: PointwiseDag, groups: int) -> OutputSpace:
    """``pixel_rows`` whose last row axis is the last spatial one."""
    return _pixel_rows(dag, groups, alone={_CHANNEL_AXIS, len(dag.dims) - 1})


def line_map(output: OutputSpace, positions: int) -> Struct:
    """The kernel's ``LineMap`` (``include/epilogue/output_map.cuh``): ``positions`` along the last row axis."""
    last = output.row_axes - 1
    extents = output.space.extents
    walked = (*extents[:last], positions, *extents[last + 1 :])
    return Struct((*(Struct(divider(max(extent, 1))) for extent in walked), *i32((extents[last],))))


def part_of(
    output: OutputSpace, pixel_class: PixelClass, steps: Sequence[int]
) -> tuple[OutputSpace, Mapping[int, int]]:
    """The pixels of one class, with strides ``steps``, and by uid the offset in elements of each tensor's part."""
    space, spatial = output.space, range(output.space.rank - 1 - len(steps), output.space.rank - 1)
    extents, firsts = list(space.extents), dict.fromkeys(space.strides, 0)
    strides = {uid: list(row) for uid, row in space.strides.items()}
    for place, axis, step in zip(spatial, pixel_class.axes, steps, strict=True):
        extents[place] = axis.extent
        for uid, row in strides.items():
            firsts[uid] += axis.origin * row[place]
            row[place] *= step
    part = IndexSpace(tuple(extents), {uid: tuple(row) for uid, row in strides.items()}, space.origin)
    return OutputSpace(part, output.row_axes), firsts


def part_arguments(dag: PointwiseDag, functor: Functor, firsts: Mapping[int, int]) -> Struct:
    """``Functor::Args`` of a part's functor, whose tensors begin at offsets ``firsts``."""
    sizes = {tensor.uid: tensor.element_bytes for tensor in (*dag.loads, *dag.stores)}

    def moved(argument: Argument) -> Argument:
        if not isinstance(argument, TensorPointer):
            return argument
        return replace(argument, offset_bytes=firsts[argument.uid] * sizes[argument.uid])

    return Struct(tuple(moved(argument) for argument in functor.arguments.fields))


def index_problem(dag: PointwiseDag, groups: int, steps: Sequence[int]) -> str:
    """Why an element's index along an axis is not available, or an empty string."""
    if groups > 1 and _CHANNEL_AXIS in _indexed_axes(dag):
        return f"groups: expected 1 with the index of a channel in the epilogue, got {groups}"
    if steps and _indexed_axes(dag) - {0, _CHANNEL_AXIS}:
        return f"convolution.strides: expected 1 with the index of a pixel in the epilogue, got {list(steps)}"
    return ""


def _pixel_rows(dag: PointwiseDag, groups: int, alone: Collection[int]) -> OutputSpace:
    own = space_of(dag)
    pixel_axes = (0, *range(2, own.rank))
    space = own.permuted((*pixel_axes, _CHANNEL_AXIS))
    if groups > 1:
        space = _grouped(space, groups)
    space = collapsed(space, alone={*alone, *_indexed_axes(dag)}, separate=pixel_axes)
    if space.rank == 1:
        space = with_axis(space, 0)
    return OutputSpace(space, space.rank - 1)


def _grouped(space: IndexSpace, groups: int) -> IndexSpace:
    """The space with its last axis, the channels, cut into groups, which become the first axis."""
    channels = space.extents[-1] // groups
    return IndexSpace(
        extents=(groups, *space.extents[:-1], channels),
        strides={uid: (row[-1] * channels, *row) for uid, row in space.strides.items()},
        origin=((_CHANNEL_AXIS,), *space.origin),
    )


def _indexed_axes(dag: PointwiseDag) -> frozenset[int]:
    """Axes whose index is a value in the DAG."""
    return frozenset(op.pointwise.axis for op in dag.operations if op.mode is PointwiseMode.GEN_INDEX)
