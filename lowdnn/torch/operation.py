"""The declaration of a taken-over operation: how its arguments are read, and the graphs that compute it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

#: A call's tensors, with ABSENT for None, and everything else that its graphs depend on, hashable.
Arguments = tuple[tuple[Any, ...], tuple[Any, ...]]
#: The results of a call: a place, None, a ``Constant``, a ``Piece``, a list of these, or a tuple of all.
Result = Any


@dataclass(frozen=True)
class Constant:
    """A result that is no tensor."""

    value: Any


@dataclass(frozen=True)
class Piece:
    """A result that is a contiguous part of what lies at a place, from an element of it on."""

    place: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int


class Absent(torch.Tensor):  # type: ignore[misc]  # torch's types are not at hand where types are checked
    """Stands for a tensor that a call does not have; it has the facts that a call's key asks tensors for."""

    shape = dtype = device = None
    #: None and 0, from calls that cost less than those of Python functions.
    stride = type(None)
    data_ptr = int


#: A tensor for Dynamo's check, which looks at all tensors of a call in one go.
ABSENT = torch.empty(0, device="meta").as_subclass(Absent)


def optional(tensor: Any) -> Any:
    """``tensor``, or ABSENT for None."""
    return ABSENT if tensor is None else tensor


@dataclass(frozen=True)
class Overload:
    """One operation of the dispatcher that lowdnn computes.

    name: as the dispatcher has it, without ``aten::``, but with ``lowdnn::``.
    operation: the name under which users choose it.
    read: from the dispatcher's arguments, which leave out defaults, to tensors and numbers.
    sketch: adds the steps for these to a ``Sketch`` and returns the places of the results. It raises ``Declined`` for
    what the native kernel is to compute, and may raise what graphs raise, which declines the call, too.
    kind: the settings that its plans depend on (``settings.reader``).
    keys: the dispatch keys at which it is taken over.
    given: the place among the dispatcher's arguments of the number that each call has anew, without a new plan.
    fallback: called in place of the native kernel, with it, where that cannot read lowdnn's results.
    """

    name: str
    operation: str
    read: Callable[..., Arguments]
    sketch: Callable[..., Result]
    kind: str = ""
    keys: tuple[str, ...] = ("CUDA", "CPU")
    given: int | None = None
    fallback: Callable[..., Any] | None = None

    @property
    def qualified_name(self) -> str:
        return self.name if "::" in self.name else f"aten::{self.name}"
