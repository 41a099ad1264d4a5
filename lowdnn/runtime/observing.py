"""Observers of the executes of a loaded plan, and steps around its launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lowdnn.plan import Launch, Plan
from lowdnn.status import LowdnnError

#: A call into a stream: a launch, or what stands before, between or behind the launches of a plan.
Step = Callable[[int], object]


@dataclass(frozen=True)
class Execute:
    """One execute of ``plan``, as its caller asked for it.

    pointers: addresses in the order of ``plan.tensors``, host addresses for by-value ones, or by uid where the caller
    gave them so.  stream: the CUstream.  is_bound: whether all arguments have passed their checks.
    """

    plan: Plan
    pointers: object
    workspace: int
    stream: int
    is_bound: bool


class ExecuteObserver(Protocol):
    """Looks at whole executes of a plan; it makes them slower, and no call of it may raise."""

    def begins(self, execute: Execute) -> None:
        """The arguments have passed their checks, and the launches follow."""

    def launched(self, execute: Execute) -> None:
        """The launches are in the stream."""

    def failed(self, execute: Execute, error: LowdnnError) -> None:
        """The execute has raised ``error``, and ends with it."""


@dataclass(frozen=True)
class Surroundings:
    """Steps around the launches of a plan, which must not raise.

    before: in front of the first one.  after_each: behind each of them.  failed: in place of those that are left, where
    a launch has raised.
    """

    before: Step
    after_each: Step
    failed: Step


def surrounded(
    launches: Sequence[tuple[Step, Launch | None]], around: Surroundings
) -> tuple[tuple[Step, Launch | None], ...]:
    """The steps of a plan with ``around`` added; the planned launch stands beside each step that is one."""
    found: list[tuple[Step, Launch | None]] = [(around.before, None)]
    for step, planned in launches:
        found.append((step, planned))
        if planned is not None:
            found.append((around.after_each, None))
    return tuple(found)
