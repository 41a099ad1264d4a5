"""All operations that are taken over, and those of ``torch.ops.lowdnn``."""

from __future__ import annotations

from lowdnn.torch.library import cross_entropy, residual_norms, rotary
from lowdnn.torch.library.definition import Definition
from lowdnn.torch.operation import Overload
from lowdnn.torch.operations import (
    attention,
    batch_norm,
    convolution,
    group_norm,
    matmul,
    pooling,
    row_norms,
    softmax,
    upsampling,
)

DEFINITIONS: tuple[Definition, ...] = (
    *rotary.DEFINITIONS,
    *residual_norms.DEFINITIONS,
    *cross_entropy.DEFINITIONS,
)

#: By the dispatcher's names.
OVERLOADS: tuple[Overload, ...] = (
    *convolution.OVERLOADS,
    *matmul.OVERLOADS,
    *attention.OVERLOADS,
    *batch_norm.OVERLOADS,
    *row_norms.OVERLOADS,
    *group_norm.OVERLOADS,
    *softmax.OVERLOADS,
    *pooling.OVERLOADS,
    *upsampling.OVERLOADS,
    *(item.overload for item in DEFINITIONS if item.overload is not None),
)


def operation_names() -> tuple[str, ...]:
    """The names by which ``enable`` chooses operations: each stands for its forms and gradients."""
    return tuple(dict.fromkeys(overload.operation for overload in OVERLOADS))
