"""Masks with a bit for each element, and the BOOLEAN tensors that stand for them inside a graph.

    PackBits      bit i of y[j] = x at place 8 j + i in memory, 0 after the last element
    UnpackBits    y at place 8 j + i in memory = bit i of x[j]

Bit 0 is the lowest one. The BOOLEAN tensor lies densely, its dimensions in any order; the bits are UINT8
(ceil(elements / 8),).
No descriptor stands for them: stored BOOLEAN tensors of a graph with a norm do (``graph.bit_masks``).
Source: cuDNN's documentation of cudnnDataType_t, by which a byte holds eight elements of CUDNN_DATA_BOOLEAN. Which bit
is the first it does not say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import DataType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.tensor import Tensor, has_overlap, span_elements
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import tensor_input, tensor_output
from lowdnn.status import BadParamError, ShapeMismatchError, UnsupportedDataTypeError

_BITS = 8


@dataclass(frozen=True)
class BitMove:
    """The common base of PackBits and UnpackBits; see the module's docstring."""

    descriptor_type: ClassVar[DescriptorType | None]
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.EXACT

    x: Tensor = tensor_input()
    y: Tensor = tensor_output()

    def __post_init__(self) -> None:
        for tensor, data_type in ((self.mask, DataType.BOOLEAN), (self.bits, DataType.UINT8)):
            if tensor.data_type is not data_type:
                got = tensor.data_type.name
                raise UnsupportedDataTypeError.at(f"{tensor.label}.data_type", expected=data_type.name, got=got)
        dims, strides = self.mask.dims, self.mask.strides
        if span_elements(dims, strides) != self.mask.element_count or has_overlap(dims, strides):
            expected = "elements side by side, where a byte has eight of them"
            raise BadParamError.at(
                f"{self.mask.label}.strides", expected=expected, got=f"{list(dims)}, {list(strides)}"
            )
        expected_dims = bits_of(self.mask).dims
        if self.bits.dims != expected_dims:
            got_dims = list(self.bits.dims)
            raise ShapeMismatchError.at(f"{self.bits.label}.dims", expected=list(expected_dims), got=got_dims)
        if self.bits.strides != (1,) and self.bits.element_count > 1:
            raise BadParamError.at(
                f"{self.bits.label}.strides", expected="[1], bytes side by side", got=list(self.bits.strides)
            )

    @property
    def mask(self) -> Tensor:
        """The BOOLEAN tensor, with a byte for each element."""
        raise NotImplementedError

    @property
    def bits(self) -> Tensor:
        """The UINT8 tensor (ceil(elements / 8),)."""
        raise NotImplementedError

    @property
    def flops(self) -> int:
        return 0

    @property
    def _in_memory(self) -> tuple[int, ...]:
        """The mask's axes, outermost first."""
        return tuple(sorted(range(self.mask.rank), key=lambda axis: (-self.mask.strides[axis], -self.mask.dims[axis])))


@dataclass(frozen=True)
class PackBits(BitMove):
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType | None] = None

    @property
    def mask(self) -> Tensor:
        return self.x

    @property
    def bits(self) -> Tensor:
        return self.y

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        elements = inputs["x"].transpose(self._in_memory).reshape(-1)
        return {"y": np.packbits(elements.astype(bool), bitorder="little").astype(np.int64)}


@dataclass(frozen=True)
class UnpackBits(BitMove):
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType | None] = None

    @property
    def mask(self) -> Tensor:
        return self.y

    @property
    def bits(self) -> Tensor:
        return self.x

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        axes, bits = self._in_memory, inputs["x"].astype(np.uint8)
        elements = np.unpackbits(bits, count=self.y.element_count, bitorder="little").astype(bool)
        return {"y": elements.reshape([self.y.dims[axis] for axis in axes]).transpose(np.argsort(axes))}


def bits_of(mask: Tensor) -> Tensor:
    """``mask``, a BOOLEAN tensor, as the bytes that its bits lie in."""
    count = -(-mask.element_count // _BITS)
    return replace(mask, data_type=DataType.UINT8, dims=(count,), strides=(1,))
