"""One edge of a band of attention scores, as a mask: y is x (B, H, S_q, S_kv) where the comparison holds, b elsewhere.

    left_bound:    key + left_bound [- seq_len_kv] [+ seq_len_q]  mode  query
    otherwise:     query [+ seq_len_kv] [- seq_len_q] [+ shift_right_bound]  mode  key

query and key are indices along the last two axes; the numbers and lengths in brackets count where they are given. All
arithmetic is that of INT32, to which a bound of FLOAT is converted.
Lengths, (B, 1, 1, 1), move the diagonal to the last query and key of a batch; they are given by themselves, as one for
every batch, (1, 1, 1, 1), or cumulated, (B + 1, 1, 1, 1), the first being 0. b is minus infinity where there is none.
It stands for pointwise operations, which ``graph.expansion`` puts in its place.
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, PointwiseMode
from lowdnn.ops.norm import check_dims, check_float
from lowdnn.ops.sdpa import Lengths, check_index_types, check_lengths
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import BadParamError, UnsupportedShapeError

_WHERE = "diagonal_band_mask"
_COMPARISONS = (PointwiseMode.CMP_GE, PointwiseMode.CMP_GT, PointwiseMode.CMP_LE, PointwiseMode.CMP_LT)


@dataclass(frozen=True)
class DiagonalBandMask:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_DIAGONAL_BAND_MASK

    x: Tensor = tensor_input(AttributeName.OPERATION_DIAGONAL_BAND_MASK_XDESC)
    y: Tensor = tensor_output(AttributeName.OPERATION_DIAGONAL_BAND_MASK_YDESC)
    mode: PointwiseMode = attribute(
        AttributeName.OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE, AttributeType.POINTWISE_MODE
    )
    b: Tensor | None = tensor_input(AttributeName.OPERATION_DIAGONAL_BAND_MASK_BDESC, default=None)
    left_bound: Tensor | None = tensor_input(AttributeName.OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC, default=None)
    shift_right_bound: Tensor | None = tensor_input(
        AttributeName.OPERATION_DIAGONAL_BAND_MASK_SHIFT_RIGHT_BOUND_DESC, default=None
    )
    seq_len_q: Tensor | None = tensor_input(AttributeName.OPERATION_DIAGONAL_BAND_MASK_SEQ_LEN_QDESC, default=None)
    seq_len_kv: Tensor | None = tensor_input(AttributeName.OPERATION_DIAGONAL_BAND_MASK_SEQ_LEN_KVDESC, default=None)
    cu_seq_len_q: Tensor | None = tensor_input(
        AttributeName.OPERATION_DIAGONAL_BAND_MASK_CU_SEQ_LEN_QDESC, default=None
    )
    cu_seq_len_kv: Tensor | None = tensor_input(
        AttributeName.OPERATION_DIAGONAL_BAND_MASK_CU_SEQ_LEN_KVDESC, default=None
    )

    def __post_init__(self) -> None:
        if self.x.rank != 4:
            expected = "[batch, heads, queries, keys]"
            raise UnsupportedShapeError.at(f"{_WHERE}.x.dims", expected=expected, got=list(self.x.dims))
        check_dims(_WHERE, self.x.dims, {"y": self.y})
        check_float(_WHERE, {"x": self.x, "y": self.y})
        if self.mode not in _COMPARISONS:
            expected = ", ".join(mode.name for mode in _COMPARISONS)
            raise BadParamError.at(f"{_WHERE}.mode", expected=expected, got=self.mode.name)
        if self.left_bound is not None and self.shift_right_bound is not None:
            raise BadParamError.at(f"{_WHERE}.left_bound", expected="none beside shift_right_bound", got="both")
        bounds = {"left_bound": self.left_bound, "shift_right_bound": self.shift_right_bound}
        for port, tensor in (bounds | {"b": self.b}).items():
            if tensor is not None and tensor.element_count != 1:
                raise BadParamError.at(f"{_WHERE}.{port}.dims", expected="one element", got=list(tensor.dims))
        check_index_types(_WHERE, {port: bound for port, bound in bounds.items() if not _is_float(bound)})
        check_lengths(_WHERE, self.x.dims[0], self.lengths, or_one=True)

    @property
    def lengths(self) -> Lengths:
        return Lengths(self.seq_len_q, self.seq_len_kv, self.cu_seq_len_q, self.cu_seq_len_kv)


def _is_float(bound: Tensor | None) -> bool:
    return bound is not None and bound.data_type is DataType.FLOAT
