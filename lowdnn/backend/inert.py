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
    """values: those that ask for what happens anyway, the default first; none: any value does, and none is the default.

    Another value is refused.
    """

    type: AttributeType
    values: tuple[Any, ...] = ()


_INERT: Mapping[DescriptorType, Mapping[AttributeName, InertAttribute]] = {
    DescriptorType.POINTWISE: {
        AttributeName.POINTWISE_NAN_PROPAGATION: InertAttribute(
            AttributeType.NAN_PROPOGATION, (NanPropagation.PROPAGATE_NAN,)
        )
    },
    DescriptorType.OPERATIONGRAPH: {
        # A kernel cache finds kernels by what they are, whatever graphs they were compiled for.
        AttributeName.OPERATIONGRAPH_IS_SAME_TOPOLOGY: InertAttribute(AttributeType.BOOLEAN, (False, True)),
    },
    DescriptorType.OPERATION_SDPA_FWD: {
        # The attribute asks cuDNN on Blackwell for kernels that round products and sums separately.
        AttributeName.OPERATION_SDPA_FWD_UNFUSE_FMA: InertAttribute(AttributeType.BOOLEAN, (False, True))
    },
    DescriptorType.OPERATION_SDPA_BWD: {
        # No workspace depends on them: rows past a sequence's length are not read.
        AttributeName.OPERATION_SDPA_BWD_MAX_TOTAL_SEQ_LEN_Q: InertAttribute(AttributeType.INT64),
        AttributeName.OPERATION_SDPA_BWD_MAX_TOTAL_SEQ_LEN_KV: InertAttribute(AttributeType.INT64),
    },
    DescriptorType.OPERATION_MATMUL: {
        AttributeName.OPERATION_MATMUL_IRREGULARLY_STRIDED_BATCH_COUNT: InertAttribute(AttributeType.INT64, (1,))
    },
}


def inert_of(descriptor_type: DescriptorType) -> Mapping[AttributeName, InertAttribute]:
    """The inert attributes that a descriptor of this type has."""
    return _INERT.get(descriptor_type, {})
