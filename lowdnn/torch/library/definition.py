"""The declaration of an operation of ``torch.ops.lowdnn``: on lowdnn, and the same in PyTorch's operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lowdnn.status import BadParamError
from lowdnn.torch.operation import Overload


@dataclass(frozen=True)
class Definition:
    """One operation.

    schema: arguments and results, as torch writes them.
    plain: computes it with PyTorch's operations, on any device and on tensors without data; results lie as lowdnn's do.
    overload: how lowdnn computes it; None where ``plain`` calls operations that have one.
    save: keeps what the gradients need: called with a context, the inputs and the output.
    backward: the gradients of all inputs, from the context and those of the outputs.
    differentiable: where ``save`` and ``backward`` are left out, gradients are those of this function, which by default
    is ``plain``. It computes saved statistics again from what they depend on.
    """

    name: str
    schema: str
    plain: Callable[..., Any]
    overload: Overload | None = None
    save: Callable[[Any, tuple[Any, ...], Any], None] | None = None
    backward: Callable[..., Any] | None = None
    differentiable: Callable[..., Any] | None = None


def check_floats(where: str, optional: Sequence[str] = (), **tensors: Any) -> None:
    """Raises BadParamError for what is no tensor of floats. A tensor that is ``optional`` may be None."""
    for name, tensor in tensors.items():
        if tensor is None and name in optional:
            continue
        if not (isinstance(tensor, torch.Tensor) and tensor.is_floating_point()):
            got = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise BadParamError.at(f"torch.ops.{where}.{name}", expected="a tensor of floats", got=got)


def check_shape(where: str, name: str, tensor: Any, shape: tuple[Any, ...], meaning: str) -> None:
    """Raises BadParamError unless the tensor, if there is one, has the shape; None stands for any extent."""
    if tensor is None:
        return
    found = tuple(tensor.shape)
    if len(found) != len(shape) or any(
        wanted is not None and own != wanted for own, wanted in zip(found, shape, strict=True)
    ):
        raise BadParamError.at(f"torch.ops.{where}.{name}.shape", expected=meaning, got=list(found))


def wide_type(*tensors: Any) -> Any:
    """The type in which lowdnn computes: fp64 where a tensor has it, otherwise fp32."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32
