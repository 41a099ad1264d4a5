"""Dequantisation as a product over split axes: dims (..., blocks, block size, ...), the scales repeated along the size.

The pointwise engine runs it. Where the last block is shorter it is a product of its own.
"""

from __future__ import annotations

from dataclasses import replace

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.pointwise.pointwise import PointwiseEngine
from lowdnn.enums import DIM_MAX, DataType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.block_scale_dequantize import BlockScaleDequantize
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, KernelRef, Launch, Struct, TensorPointer

_POINTWISE = PointwiseEngine()


def refuse(operation: BlockScaleDequantize, arch: ArchSpec) -> str:
    """Why the product cannot be run, or an empty string."""
    if operation.x.rank == DIM_MAX:
        return f"BlockScaleDequantize.x.dims: expected at most {DIM_MAX - 1} axes, got {operation.x.rank}"
    refusals = (_POINTWISE.refuse(_product(operation, *part), arch) for part in _parts(operation))
    return next((refusal.reason for refusal in refusals if refusal is not None), "")


def launches_of(operation: BlockScaleDequantize, arch: ArchSpec) -> tuple[tuple[KernelRef, ...], tuple[Launch, ...]]:
    kernels: dict[KernelRef, int] = {}
    launches = []
    for first, blocks, size in _parts(operation):
        plan = _POINTWISE.plan(_product(operation, first, blocks, size), arch, {})
        steps = {operation.x: operation.block_size, operation.y: operation.block_size, operation.scale: 1}
        offsets = {
            tensor.uid: first * step * tensor.strides[operation.axis] * tensor.element_bytes
            for tensor, step in steps.items()
        }
        for launch in plan.launches:
            kernel = kernels.setdefault(plan.kernels[launch.kernel], len(kernels))
            arguments = tuple(_shifted(argument, offsets) for argument in launch.arguments)
            launches.append(replace(launch, kernel=kernel, arguments=arguments))
    return tuple(kernels), tuple(launches)


def _parts(operation: BlockScaleDequantize) -> list[tuple[int, int, int]]:
    """(first block, number of blocks, size of each): the whole blocks, then the shorter one."""
    whole, rest = divmod(operation.x.dims[operation.axis], operation.block_size)
    parts = [(0, whole, operation.block_size), (whole, 1, rest)]
    return [part for part in parts if part[1] * part[2]] or parts[:1]


def _product(operation: BlockScaleDequantize, first: int, blocks: int, size: int) -> OperationGraph:
    """The product for some blocks, with the tensors' uids, as if the first of them began at each tensor's address."""
    axis = operation.axis

    def split(tensor: Tensor, extents: tuple[int, int], step: int) -> Tensor:
        stride = tensor.strides[axis]
        begins = first * step * stride * tensor.element_bytes
        return replace(
            tensor,
            dims=(*tensor.dims[:axis], *extents, *tensor.dims[axis + 1 :]),
            strides=(*tensor.strides[:axis], stride * step, stride, *tensor.strides[axis + 1 :]),
            alignment_bytes=min(tensor.alignment_bytes, begins & -begins or tensor.alignment_bytes),
        )

    x, y = (split(tensor, (blocks, size), operation.block_size) for tensor in (operation.x, operation.y))
    scale = split(operation.scale, (blocks, 1), 1)
    return OperationGraph([PointwiseOperation(Pointwise(PointwiseMode.MUL, DataType.FLOAT), x=x, b=scale, y=y)])


def _shifted(argument: Argument, offsets: dict[int, int]) -> Argument:
    """``argument`` with its pointers moved by ``offsets`` bytes, by uid."""
    if isinstance(argument, TensorPointer):
        return replace(argument, offset_bytes=argument.offset_bytes + offsets[argument.uid])
    if isinstance(argument, Struct):
        return Struct(tuple(_shifted(field, offsets) for field in argument.fields))
    return argument
