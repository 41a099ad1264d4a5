"""Block-scale dequantisation with the blocks' extents along several axes: those of the last ones, or one extent alone.

One extent at most is not 1, the size of ``block_scale_dequantize``'s blocks, for which it stands
(``graph.expansion``).
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_BLOCK_SCALE_DEQUANTIZE_DESCRIPTOR.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType
from lowdnn.ops.block_scale_dequantize import BlockScaleDequantize
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import NotSupportedError, ShapeMismatchError

_WHERE = "block_scale_dequantize"
_MOST_AXES = 8


@dataclass(frozen=True)
class BlockScaleDequantizeByAxes:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE

    x: Tensor = tensor_input(AttributeName.OPERATION_BLOCK_SCALE_DEQUANTIZE_XDESC)
    scale: Tensor = tensor_input(AttributeName.OPERATION_BLOCK_SCALE_DEQUANTIZE_SCALE_DESC)
    y: Tensor = tensor_output(AttributeName.OPERATION_BLOCK_SCALE_DEQUANTIZE_YDESC)
    compute_type: DataType = attribute(
        AttributeName.OPERATION_BLOCK_SCALE_DEQUANTIZE_MATH_PREC, AttributeType.DATA_TYPE
    )
    block_sizes: tuple[int, ...] = attribute(
        AttributeName.OPERATION_BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE, AttributeType.INT32, max_count=_MOST_AXES
    )
    is_negative_scale: bool = attribute(
        AttributeName.OPERATION_BLOCK_SCALE_DEQUANTIZE_NEG_SCALE, AttributeType.BOOLEAN, default=False
    )

    def __post_init__(self) -> None:
        axis, sizes = self.operation.axis, self.block_sizes
        if len(sizes) > self.x.rank:
            raise ShapeMismatchError.at(
                f"{_WHERE}.block_size", expected=f"at most {self.x.rank} sizes", got=list(sizes)
            )
        if len(sizes) > 1 and self._size != 1 and self.x.rank - len(sizes) + sizes.index(self._size) != axis:
            expected = f"a size of {self._size} for axis {axis}, along which the scales are"
            raise ShapeMismatchError.at(f"{_WHERE}.block_size", expected=expected, got=list(sizes))

    @cached_property
    def operation(self) -> BlockScaleDequantize:
        """The operation with its one size; raises NotSupportedError for blocks along several axes."""
        return BlockScaleDequantize(self.x, self.scale, self.y, self.compute_type, self._size, self.is_negative_scale)

    @property
    def _size(self) -> int:
        others = [size for size in self.block_sizes if size != 1] or [1]
        if len(others) > 1:
            raise NotSupportedError.at(
                f"{_WHERE}.block_size", expected="one size that is not 1", got=list(self.block_sizes)
            )
        return others[0]
