"""Makes the operations of ``torch.ops.lowdnn`` known to torch: kernels, results without data, gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from lowdnn.torch.library.definition import Definition
from lowdnn.torch.operation import Overload
from lowdnn.torch.registry import REGISTRY
from lowdnn.torch.taken import hide_from_compiler


def define(definitions: Iterable[Definition]) -> None:
    """Makes the operations known to torch. CUDA tensors run on lowdnn, others on PyTorch's operations."""
    library = REGISTRY.library
    for item in definitions:
        name = f"{library.ns}::{item.name}"
        library.define(f"{item.name}{item.schema}", tags=(torch.Tag.pt2_compliant_tag,))
        if item.overload is None:
            library.impl(item.name, item.plain, "CompositeExplicitAutograd")
        else:
            library.impl(item.name, item.plain, "CPU")
            library.impl(item.name, _on_gpu(item.overload, item.plain), "CUDA")
        torch.library.register_fake(name, item.plain, lib=library)
        save, backward = item.save or _save_inputs, item.backward or _gradients_of(item.differentiable or item.plain)
        torch.library.register_autograd(name, backward, setup_context=save, lib=library)


def _on_gpu(overload: Overload, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel for CUDA tensors: lowdnn's, which the first call gets ready."""
    find = REGISTRY.own_kernel

    def called(*args: Any, **kwargs: Any) -> Any:
        return find(overload, plain)(*args, **kwargs)

    hide_from_compiler(called.__code__)
    return called


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    places = [place for place, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
    ctx.save_for_backward(*(inputs[place] for place in places))
    ctx.places = places
    ctx.others = [None if place in places else value for place, value in enumerate(inputs)]


def _gradients_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of all inputs, from those of ``function``."""

    def backward(ctx: Any, *gradients: Any) -> Any:
        values = list(ctx.others)
        for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            values[place] = tensor
        asked = [place for place in ctx.places if ctx.needs_input_grad[place]]
        with torch.enable_grad():
            for place in asked:
                values[place] = values[place].view_as(values[place])
            outputs = function(*values)
            outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
            pairs = [
                (output, gradient)
                for output, gradient in zip(outputs, gradients, strict=True)
                if gradient is not None and output.requires_grad
            ]
            found = torch.autograd.grad(
                [output for output, _ in pairs], [values[place] for place in asked],
                [gradient for _, gradient in pairs], allow_unused=True, create_graph=torch.is_grad_enabled(),
            )  # fmt: skip
        results: list[Any] = [None] * len(values)
        for place, gradient in zip(asked, found, strict=True):
            results[place] = gradient
        return tuple(results)

    return backward
