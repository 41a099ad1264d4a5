"""Dequantisation as a product over split axes: dims (..., blocks, block size, ...), scales broadcast along the block
size.

The pointwise engine runs it. A shorter last block is a second product; scales in tiles are first copied to rows in the
workspace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import aligned_bytes
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.pointwise.pointwise import PointwiseEngine
from lowdnn.enums import DIM_MAX, DataType, PointwiseMode, TensorReordering
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops import block_scale
from lowdnn.ops.block_scale_dequantize import BlockScaleDequantize
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.tensor import Tensor, memory_layout, packed_strides
from lowdnn.plan import Argument, Pointer, Struct, TensorPointer, WorkspacePointer

_POINTWISE = PointwiseEngine()


@dataclass(frozen=True)
class _Step:
    """A pointwise graph, and the pointer of each of its tensors, by uid."""

    graph: OperationGraph
    places: Mapping[int, Pointer]


def refuse(operation: BlockScaleDequantize, arch: ArchSpec) -> str:
    """Why the operation cannot be run, or an empty string."""
    most = DIM_MAX - 3 if _is_tiled(operation) else DIM_MAX - 1
    if operation.x.rank > most:
        return f"BlockScaleDequantize.x.dims: expected at most {most} axes, got {operation.x.rank}"
    refusals = (_POINTWISE.refuse(step.graph, arch) for step in _steps(operation))
    return next((refusal.reason for refusal in refusals if refusal is not None), "")


def parts_of(operation: BlockScaleDequantize, arch: ArchSpec) -> PlanParts:
    """The launches of the pointwise graphs, in order."""
    parts = PlanParts(workspace_bytes=aligned_bytes(operation.scale.span_bytes) if _is_tiled(operation) else 0)
    for step in _steps(operation):
        plan = _POINTWISE.plan(step.graph, arch, {})
        for launch in plan.launches:
            arguments = tuple(_placed(argument, step.places) for argument in launch.arguments)
            parts.add(plan.kernels[launch.kernel], replace(launch, arguments=arguments))
    return parts


def _is_tiled(operation: BlockScaleDequantize) -> bool:
    return operation.scale.reordering is TensorReordering.F8_128x4


def _steps(operation: BlockScaleDequantize) -> Iterator[_Step]:
    if _is_tiled(operation):
        yield _laid_out(operation)
    whole, rest = divmod(operation.x.dims[operation.axis], operation.block_size)
    if whole:
        yield _product(operation, 0, whole, operation.block_size)
    if rest:
        yield _product(operation, whole, 1, rest)


def _laid_out(operation: BlockScaleDequantize) -> _Step:
    """Copies the scales from their tiles to rows in the workspace."""
    dims, strides = memory_layout(operation.scale)
    tiles = replace(operation.scale, dims=dims, strides=strides, reordering=TensorReordering.NONE)
    rows = replace(tiles, uid=_rows_uid(operation), strides=packed_strides(dims))
    graph = OperationGraph([PointwiseOperation(Pointwise(PointwiseMode.IDENTITY, DataType.FLOAT), x=tiles, y=rows)])
    return _Step(graph, {tiles.uid: TensorPointer(tiles.uid), rows.uid: WorkspacePointer()})


def _product(operation: BlockScaleDequantize, first: int, blocks: int, size: int) -> _Step:
    """The product for ``blocks`` blocks from block ``first`` on; each tensor's pointer is that of its first element."""
    axis, places = operation.axis, {}

    def split(tensor: Tensor, extents: tuple[int, int], step: int) -> Tensor:
        stride = tensor.strides[axis]
        begins = first * step * stride * tensor.element_bytes
        in_workspace = tensor.uid == _rows_uid(operation)
        places[tensor.uid] = WorkspacePointer(begins) if in_workspace else TensorPointer(tensor.uid, begins)
        return replace(
            tensor,
            dims=(*tensor.dims[:axis], *extents, *tensor.dims[axis + 1 :]),
            strides=(*tensor.strides[:axis], stride * step, stride, *tensor.strides[axis + 1 :]),
            alignment_bytes=min(tensor.alignment_bytes, begins & -begins or tensor.alignment_bytes),
        )

    x, y = (split(tensor, (blocks, size), operation.block_size) for tensor in (operation.x, operation.y))
    scale = split(_scale_rows(operation), (blocks, 1), 1)
    product = PointwiseOperation(Pointwise(PointwiseMode.MUL, DataType.FLOAT), x=x, b=scale, y=y)
    return _Step(OperationGraph([product]), places)


def _scale_rows(operation: BlockScaleDequantize) -> Tensor:
    """The scales as the product reads them: scales in tiles lose the padding of the tiles."""
    scale = operation.scale
    if not _is_tiled(operation):
        return scale
    dims = block_scale.scale_dims(operation.x.dims, operation.axis, operation.block_size)
    return replace(scale, uid=_rows_uid(operation), dims=dims, reordering=TensorReordering.NONE)


def _rows_uid(operation: BlockScaleDequantize) -> int:
    """A uid that none of the operation's tensors has."""
    taken = {operation.x.uid, operation.y.uid, operation.scale.uid}
    return next(uid for uid in range(len(taken) + 1) if uid not in taken)


def _placed(argument: Argument, places: Mapping[int, Pointer]) -> Argument:
    """``argument`` with pointers from ``places``."""
    if isinstance(argument, TensorPointer):
        place = places[argument.uid]
        return replace(place, offset_bytes=place.offset_bytes + argument.offset_bytes)
    if isinstance(argument, Struct):
        return Struct(tuple(_placed(field, places) for field in argument.fields))
    return argument
