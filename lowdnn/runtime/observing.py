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

    before: in front of the first one.  after_each: behind each of them but the last.  after: behind the last one.
    failed: in place of those that are left, where a launch has raised.
    """

    before: Step
    after: Step
    after_each: Step | None = None
    failed: Step | None = None


def surrounded(
    launches: Sequence[tuple[Step, Launch | None]], around: Surroundings
) -> tuple[tuple[Step, Launch | None], ...]:
    """The steps of a plan with ``around`` added; the planned launch stands beside each step that is one."""
    found: list[tuple[Step, Launch | None]] = [(around.before, None)]
    last = max((place for place, (_, planned) in enumerate(launches) if planned is not None), default=-1)
    for place, (step, planned) in enumerate(launches):
        found.append((step, planned))
        if planned is not None and around.after_each is not None and place != last:
            found.append((around.after_each, None))
    return (*found, (around.after, None))
