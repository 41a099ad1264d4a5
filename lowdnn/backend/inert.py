"""Attributes without an effect: they can be set and read, and are checked, but no operation uses them.

cudnn-frontend sets POINTWISE_NAN_PROPAGATION on every ReLU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lowdnn.enums import AttributeName, AttributeType, DescriptorType, NanPropagation


@dataclass(frozen=True)
class InertAttribute:
    """reason: why it has no effect.

    values: the values that ask for what happens anyway, the default first; without any, every value does, and there is
    no default. Another value is refused.
    """

    type: AttributeType
    reason: str
    values: tuple[Any, ...] = ()


_BY_LENGTH = "no workspace depends on it, since rows past a sequence's length are not read"

INERT_ATTRIBUTES: Mapping[DescriptorType, Mapping[AttributeName, InertAttribute]] = {
    DescriptorType.POINTWISE: {
        AttributeName.POINTWISE_NAN_PROPAGATION: InertAttribute(
            AttributeType.NAN_PROPOGATION, "NaN always propagates", (NanPropagation.PROPAGATE_NAN,)
        )
    },
    DescriptorType.OPERATIONGRAPH: {
        AttributeName.OPERATIONGRAPH_IS_SAME_TOPOLOGY: InertAttribute(
            AttributeType.BOOLEAN,
            "a kernel cache finds kernels by what they are, whatever graphs they were compiled for",
            (False, True),
        ),
    },
    DescriptorType.OPERATION_SDPA_FWD: {
        AttributeName.OPERATION_SDPA_FWD_UNFUSE_FMA: InertAttribute(
            AttributeType.BOOLEAN,
            "it asks for kernels that round products and sums separately, which cuDNN has for Blackwell",
            (False, True),
        )
    },
    DescriptorType.OPERATION_SDPA_BWD: {
        AttributeName.OPERATION_SDPA_BWD_MAX_TOTAL_SEQ_LEN_Q: InertAttribute(AttributeType.INT64, _BY_LENGTH),
        AttributeName.OPERATION_SDPA_BWD_MAX_TOTAL_SEQ_LEN_KV: InertAttribute(AttributeType.INT64, _BY_LENGTH),
    },
    DescriptorType.OPERATION_MATMUL: {
        AttributeName.OPERATION_MATMUL_IRREGULARLY_STRIDED_BATCH_COUNT: InertAttribute(
            AttributeType.INT64, "every batch lies by the strides of its tensors", (1,)
        )
    },
}


def inert_of(descriptor_type: DescriptorType) -> Mapping[AttributeName, InertAttribute]:
    """The inert attributes that a descriptor of this type has."""
    return INERT_ATTRIBUTES.get(descriptor_type, {})
