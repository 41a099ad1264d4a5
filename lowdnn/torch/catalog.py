"""All operations that are taken over, and those of ``torch.ops.lowdnn``."""

from __future__ import annotations

import torch

from lowdnn.torch.library import block_scaling, cross_entropy, experts, residual_norms, rotary, score_attention
from lowdnn.torch.library.definition import Definition
from lowdnn.torch.operation import Overload
from lowdnn.torch.operations import (
    attention,
    batch_norm,
    convolution,
    group_norm,
    lengths_attention,
    matmul,
    packed_attention,
    pooling,
    recurrent,
    row_norms,
    scaled_matmul,
    softmax,
    upsampling,
)

DEFINITIONS: tuple[Definition, ...] = (
    *rotary.DEFINITIONS,
    *residual_norms.DEFINITIONS,
    *cross_entropy.DEFINITIONS,
    *experts.DEFINITIONS,
    *block_scaling.DEFINITIONS,
    *score_attention.DEFINITIONS,
)

_TAKEN_OVER: tuple[Overload, ...] = (
    *convolution.OVERLOADS,
    *matmul.OVERLOADS,
    *attention.OVERLOADS,
    *packed_attention.OVERLOADS,
    *lengths_attention.OVERLOADS,
    *batch_norm.OVERLOADS,
    *row_norms.OVERLOADS,
    *group_norm.OVERLOADS,
    *softmax.OVERLOADS,
    *pooling.OVERLOADS,
    *upsampling.OVERLOADS,
    *recurrent.OVERLOADS,
    *scaled_matmul.OVERLOADS,
)


def _is_known(overload: Overload) -> bool:
    """Whether this version of torch has the operation."""
    name, _, variant = overload.qualified_name.partition(".")
    try:
        torch._C._dispatch_find_schema_or_throw(name, variant)
    except RuntimeError:
        return False
    return True


#: All that the dispatcher may run on lowdnn, by its names.
OVERLOADS: tuple[Overload, ...] = (
    *filter(_is_known, _TAKEN_OVER),
    *(item.overload for item in DEFINITIONS if item.overload is not None),
)


def operation_names() -> tuple[str, ...]:
    """The names by which ``enable`` chooses operations: each stands for its forms and gradients."""
    return tuple(dict.fromkeys(overload.operation for overload in OVERLOADS))
