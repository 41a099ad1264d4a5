"""Default data types, and the pointwise chains before and after an operation, for all families."""

from __future__ import annotations

from typing import Any

from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.steps import STORE, Chain
from lowdnn.enums import (
    DataType,
    PointwiseMode,
)
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError

#: The axes along which the second operands of a chain have the full extent, by name (``broadcast_dims``).
BROADCASTS = ("none", "channel", "row", "column", "batch", "scalar")
#: Exact tests draw small integers. A scale and a shift before a sum make their squares at most this many times as
#: large, and the sum may have fewer terms by this factor (``exact_length``).
PROLOGUE_GROWTH = 16


def contraction_type(data_type: DataType) -> DataType:
    """The default compute type of a contraction over operands of ``data_type``."""
    if data_type is DataType.DOUBLE:
        return DataType.DOUBLE
    return DataType.INT32 if data_type in (DataType.INT8, DataType.INT32) else DataType.FLOAT


def contraction_output(data_type: DataType) -> DataType:
    """The default output type of a contraction: the operands' own, INT32 for INT8."""
    return DataType.INT32 if data_type is DataType.INT8 else data_type


def pointwise_type(data_type: DataType) -> DataType:
    """The default compute type of pointwise operations and reductions over operands of ``data_type``."""
    if data_type in (DataType.DOUBLE, DataType.INT64, DataType.BOOLEAN):
        return data_type
    return DataType.INT32 if data_type in (DataType.INT8, DataType.UINT8, DataType.INT32) else DataType.FLOAT


def stores(steps: tuple[str, ...], out: DataType) -> tuple[DataType | None, DataType, tuple[str, ...]]:
    """(data type of the anchor's output, data type of the last step's output, steps after the anchor)."""
    if steps and steps[0] == STORE:
        return out, out, steps[1:]
    return (None if steps else out), out, steps


def virtual_type(graph: OperationGraph) -> DataType | None:
    """The data type of the graph's first virtual tensor; None where there is none."""
    return next((tensor.data_type for tensor in graph.tensors.values() if tensor.is_virtual), None)


def prologue_of(
    builder: CaseBuilder, steps: tuple[str, ...], value: Tensor, line_dims: tuple[int, ...], data_type: DataType
) -> Tensor:
    """The virtual input of ``data_type``, after float arithmetic."""
    chain = Chain(
        steps=steps,
        dims=value.dims,
        operand_dims=value.dims,
        channel_dims=line_dims,
        operand_type=DataType.FLOAT,
        compute_type=DataType.DOUBLE if data_type is DataType.DOUBLE else DataType.FLOAT,
        operand_layout=layout_like(value),
    )
    changed = chain.build(builder, value, None, Layout.ROW_MAJOR)
    return builder.pointwise(PointwiseMode.IDENTITY, changed, compute_type=chain.compute_type, virtual=data_type)


def epilogue_of(
    steps: tuple[str, ...], value: Tensor, channel_dims: tuple[int, ...], data_type: DataType, compute: DataType
) -> Chain:
    """The chain behind a contraction: float arithmetic, operands in the contraction's float type or fp32."""
    is_integer = compute is DataType.INT32
    return Chain(
        steps=steps,
        dims=value.dims,
        operand_dims=value.dims,
        channel_dims=channel_dims,
        operand_type=DataType.FLOAT if is_integer else data_type,
        compute_type=DataType.DOUBLE if compute is DataType.DOUBLE else DataType.FLOAT,
        operand_layout=layout_like(value),
    )


def same_dims_chain(steps: tuple[str, ...], value: Tensor, data_type: DataType, compute: DataType) -> Chain:
    return Chain(
        steps=steps,
        dims=value.dims,
        operand_dims=value.dims,
        channel_dims=broadcast_dims(value.dims, "channel"),
        operand_type=data_type,
        compute_type=compute,
    )


def layout_like(value: Tensor) -> Layout:
    """Channels-last where ``value`` is, otherwise row-major."""
    is_channels_last = value.rank > 2 and value.strides[1] == 1 and value.strides[-1] != 1
    return Layout.CHANNELS_LAST if is_channels_last else Layout.ROW_MAJOR


def broadcast_dims(dims: tuple[int, ...], broadcast: str) -> tuple[int, ...]:
    """``dims`` with 1 on every axis but those named: batch 0, channel 1, row the last, column all but the last."""
    last = len(dims) - 1
    kept = {
        "none": range(last + 1),
        "batch": (0,),
        "channel": (min(1, last),),
        "row": (last,),
        "column": range(last),
        "scalar": (),
    }[broadcast]
    return tuple(extent if axis in kept else 1 for axis, extent in enumerate(dims))


def each_axis(name: str, values: tuple[Any, ...], spatial: int) -> tuple[Any, ...]:
    """One value for each spatial axis; a single one serves all."""
    if len(values) not in (1, spatial):
        raise BadParamError.at(name, expected=f"1 or {spatial} values", got=list(values))
    return values if len(values) == spatial else values * spatial
