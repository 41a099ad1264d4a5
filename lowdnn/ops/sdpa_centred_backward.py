"""The gradients of scaled dot product attention, ``sdpa_backward``, whose D are multiplied by numbers:

    D = the product of centre_scales * sum over the last axis of d_o * o

Graphs that write the gradients as matrix products have such numbers, whose product is 1 where the other tensors are
those of a forward operation: the inverse of what dropout multiplies weights by, and that number itself.
Each has one element, in FLOAT. No descriptor stands for the operation (``graph.attention_gradient_pattern``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowdnn.enums import DataType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.sdpa_backward import Array, SdpaBackward
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import tensor_inputs
from lowdnn.status import BadParamError, UnsupportedDataTypeError

#: The most numbers in ``centre_scales``.
MAX_SCALES = 2

_WHERE = "sdpa_centred_backward.centre_scales"


@dataclass(frozen=True, kw_only=True)
class SdpaCentredBackward(SdpaBackward):
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType | None] = None

    centre_scales: tuple[Tensor, ...] = tensor_inputs()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < len(self.centre_scales) <= MAX_SCALES:
            expected = f"1 to {MAX_SCALES} tensors"
            raise BadParamError.at(_WHERE, expected=expected, got=len(self.centre_scales))
        for index, tensor in enumerate(self.centre_scales):
            if tensor.element_count != 1:
                raise BadParamError.at(f"{_WHERE}[{index}].dims", expected="one element", got=list(tensor.dims))
            if tensor.data_type is not DataType.FLOAT:
                got = tensor.data_type.name
                raise UnsupportedDataTypeError.at(f"{_WHERE}[{index}].data_type", expected="FLOAT", got=got)

    def _centres(self, inputs: Values) -> Array:
        centres = super()._centres(inputs)
        for index in range(len(self.centre_scales)):
            centres = centres * inputs[f"centre_scales[{index}]"]
        return centres
