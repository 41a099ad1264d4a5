"""The types and places of statistics that norms keep for their gradients."""

from __future__ import annotations

from typing import Any

import torch

_NARROW = (torch.float16, torch.bfloat16)


def statistics_type(x: Any, *parameters: Any) -> Any:
    """The type of saved statistics on the device of x: on a GPU fp32 for narrow types.

    On the CPU it is x's own type, unless x is narrow and its parameters are fp32.
    """
    if x.device.type == "cuda" and x.dtype in _NARROW:
        return torch.float32
    return parameter_type(x, *parameters)


def parameter_type(x: Any, *parameters: Any) -> Any:
    """fp32 for a narrow x with parameters of fp32, otherwise x's type."""
    is_mixed = x.dtype in _NARROW and any(parameter.dtype == torch.float32 for parameter in parameters)
    return torch.float32 if is_mixed else x.dtype
