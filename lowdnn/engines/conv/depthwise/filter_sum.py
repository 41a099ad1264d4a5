"""The plan of ``conv_depthwise_filter_sum.cu``: the sum of the slices of a filter gradient, and its epilogue."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.codegen.functor import Functor, generate
from lowdnn.engines.conv.depthwise.geometry import DepthwiseGeometry
from lowdnn.engines.launch import (
    ceil_div,
    divider,
    i32,
    macros,
    moved_bytes,
    target_label,
)
from lowdnn.enums import DataType
from lowdnn.plan import KernelRef, Launch, MathUnit, Struct, Work, WorkspacePointer

#: Elements (taps times filters) that a block sums.
_COLUMNS = 16
#: Threads that share the slices of one element.
_PARTS = 16


@dataclass(frozen=True)
class _Params:
    """The macros of ``conv_depthwise_filter_sum.cu``."""

    COLUMNS: int
    PARTS: int


def functor_of(geometry: DepthwiseGeometry) -> Functor:
    """The epilogue's functor, for one element at a time."""
    return generate(geometry.dag, accumulator=DataType.FLOAT, vector_axis=0)


def sum_kernel(functor: Functor, target: str) -> KernelRef:
    """The kernel for ``target`` (``dependent_target``)."""
    return KernelRef(
        name=f"conv_depthwise_filter_sum_{target_label(target)}_{functor.digest}",
        source="conv/depthwise/conv_depthwise_filter_sum.cu",
        target=target,
        parameters=macros(_Params(_COLUMNS, _PARTS)),
        generated=functor.text,
    )


def sum_launch(geometry: DepthwiseGeometry, slice_count: int, functor: Functor, offset_bytes: int) -> Launch:
    """The launch that adds the slices and applies the epilogue."""
    dw = geometry.operation.filter
    arguments = Struct(
        (
            WorkspacePointer(offset_bytes),
            *i32((slice_count, dw.element_count)),
            Struct(divider(dw.dims[0])),
            *(Struct(divider(extent)) for extent in dw.dims[2:]),
            functor.arguments,
        )
    )
    work = Work(slice_count * dw.element_count, moved_bytes(geometry.dag), MathUnit.FMA_F32)
    blocks = ceil_div(dw.element_count, _COLUMNS)
    return Launch(1, (blocks, 1, 1), (_COLUMNS * _PARTS, 1, 1), (arguments,), work=work)
