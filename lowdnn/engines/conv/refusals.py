"""Refusals that several engines of convolutions share."""

from __future__ import annotations

from collections.abc import Collection

from lowdnn.engines.base import Refusal
from lowdnn.engines.gemm import tiles
from lowdnn.engines.gemm.instructions import MMA_ACCUMULATORS
from lowdnn.enums import DataType
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.tensor import Tensor, channels_last_strides
from lowdnn.status import Status

_ANY_TYPE = frozenset(MMA_ACCUMULATORS)


def refuse_operand_types(
    engine: str, operation: ConvolutionOperation, allowed: Collection[DataType] = _ANY_TYPE
) -> Refusal | None:
    """The refusal of an engine that reads both operands with mma.sync.  allowed: the types that it takes."""
    ports = zip(operation.roles, (operation.image, operation.filter, operation.response), strict=True)
    operands = {f"{operation.label}.{port}": t.data_type for port, t in ports if t is not operation.output}
    refused = tiles.refuse_types(operands, ("convolution.compute_type", operation.convolution.compute_type))
    name, data_type = next(iter(operands.items()))
    if not refused and data_type not in allowed:
        known = ", ".join(sorted(known.name for known in allowed))
        refused = f"{name}.data_type: expected one of {known}, got {data_type.name}"
    return Refusal(engine, refused, Status.NOT_SUPPORTED_DATA_TYPE) if refused else None


def refuse_nothing(operation: ConvolutionOperation) -> str:
    """Why there are no products, or an empty string: a tensor has no elements."""
    return f"{operation.label}: expected elements in every tensor, got none" if operation.is_over_nothing else ""


def refuse_several_taps(operation: ConvolutionOperation) -> str:
    """Why ``operation`` is not a product of pixels and a matrix, or an empty string."""
    geometry, taps = operation.convolution, operation.filter.dims[2:]
    pads = (*geometry.pre_paddings, *geometry.post_paddings)
    if {*taps, *geometry.strides} == {1} and not any(pads) and operation.groups == 1:
        return ""
    got = f"taps {list(taps)}, strides {list(geometry.strides)}, groups {operation.groups}, padding {list(pads)}"
    return f"convolution: expected one tap, stride 1, no padding and one group, got {got}"


def refuse_pixels(tensor: Tensor, alignment_bytes: int) -> str:
    """Why ``tensor`` is not made of dense channels-last pixels with an aligned beginning, or an empty string."""
    if tensor.strides == channels_last_strides(tensor.dims) and tensor.alignment_bytes >= alignment_bytes:
        return ""
    got = f"{list(tensor.strides)}, aligned to {tensor.alignment_bytes}"
    return f"{tensor.label}.strides: expected dense channels-last pixels aligned to {alignment_bytes}, got {got}"
