"""Attributes without an effect: they are set, checked and read back, and no operation has them.

cudnn-frontend sets POINTWISE_NAN_PROPAGATION on every ReLU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lowdnn.enums import AttributeName, AttributeType, DescriptorType, NanPropagation


@dataclass(frozen=True)
class InertAttribute:
    """values: those that ask for what happens anyway, the default first; any other value is refused."""

    type: AttributeType
    values: tuple[Any, ...]


_INERT: Mapping[DescriptorType, Mapping[AttributeName, InertAttribute]] = {
    DescriptorType.POINTWISE: {
        AttributeName.POINTWISE_NAN_PROPAGATION: InertAttribute(
            AttributeType.NAN_PROPOGATION, (NanPropagation.PROPAGATE_NAN,)
        )
    },
    DescriptorType.OPERATIONGRAPH: {
        AttributeName.OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED: InertAttribute(AttributeType.BOOLEAN, (False,))
    },
    DescriptorType.OPERATION_SDPA_FWD: {
        # The attribute asks cuDNN on Blackwell for kernels that round products and sums separately.
        AttributeName.OPERATION_SDPA_FWD_UNFUSE_FMA: InertAttribute(AttributeType.BOOLEAN, (False, True))
    },
}


def inert_of(descriptor_type: DescriptorType) -> Mapping[AttributeName, InertAttribute]:
    """The inert attributes that a descriptor of this type has."""
    return _INERT.get(descriptor_type, {})
