"""Values of each row or batch that attention forward reads or stores once: lengths, the sink, statistics."""

from __future__ import annotations

from lowdnn.engines.launch import i64
from lowdnn.enums import DataType
from lowdnn.graph.attention_pattern import Attention
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, Struct, TensorPointer

#: The C type of each data type that lengths may have.
LENGTH_TYPES = {DataType.INT32: "i32", DataType.INT64: "i64"}


def statistics_of(attention: Attention) -> dict[str, Tensor | None]:
    """The tensor of each statistic, or None, by the name of its macro; in the order of the kernel's parameters."""
    softmax = attention.softmax
    return {"STATS": softmax.stats, "MAX": softmax.max, "SUM_EXP": softmax.sum_exp}


def length_type(lengths: Tensor | None) -> str:
    """The value of a macro LENGTH_TYPE; ``i32`` if there are no lengths."""
    return "i32" if lengths is None else LENGTH_TYPES[lengths.data_type]


def lengths_arguments(lengths: Tensor | None) -> tuple[Argument, ...]:
    """The arguments for lengths, one for each batch: pointer and stride; none if there are no lengths."""
    if lengths is None:
        return ()
    stride = lengths.strides[0] if lengths.dims[0] > 1 else 0
    return (TensorPointer(lengths.uid), *i64((stride,)))


def row_values(tensor: Tensor) -> Struct:
    """The kernels' ``RowValues``: pointer and strides of one number for each row."""
    strides = (stride if extent > 1 else 0 for stride, extent in zip(tensor.strides, tensor.dims[:3], strict=False))
    return Struct((TensorPointer(tensor.uid), *i64(strides)))
