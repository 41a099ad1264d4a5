"""Kernels, launches and workspace of one plan, collected in launch order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lowdnn.engines.launch import aligned_bytes
from lowdnn.engines.relocation import Places, moved
from lowdnn.enums import BehaviorNote, NumericalNote
from lowdnn.plan import KernelRef, Launch, Plan


class PlanParts:
    """The parts of one plan; without any, the plan has no launches.

    numerical_notes, behavior_notes: the plan's notes, if they are not all of its engine's.
    names: the plans that it consists of, in launch order (``Plan.parts``).
    """

    def __init__(
        self,
        steps: Iterable[tuple[KernelRef, Launch]] = (),
        workspace_bytes: int = 0,
        numerical_notes: tuple[NumericalNote, ...] | None = None,
    ) -> None:
        """steps: kernels, each with its launch, whose ``Launch.kernel`` is set here."""
        self.launches: list[Launch] = []
        self.workspace_bytes = workspace_bytes
        self.numerical_notes = numerical_notes
        self.behavior_notes: tuple[BehaviorNote, ...] | None = None
        self.names: tuple[str, ...] = ()
        self._kernels: dict[KernelRef, int] = {}
        for kernel, launch in steps:
            self.add(kernel, launch)

    @property
    def kernels(self) -> tuple[KernelRef, ...]:
        return tuple(self._kernels)

    def kernel(self, kernel: KernelRef) -> int:
        """The index of ``kernel``, for ``Launch.kernel``."""
        return self._kernels.setdefault(kernel, len(self._kernels))

    def add(self, kernel: KernelRef, launch: Launch) -> None:
        """Adds a launch of ``kernel``."""
        number = self.kernel(kernel)
        self.launches.append(launch if launch.kernel == number else replace(launch, kernel=number))

    def reserve(self, size_bytes: int) -> int:
        """Reserves ``size_bytes`` of the workspace and returns their offset."""
        offset_bytes = self.workspace_bytes
        self.workspace_bytes += aligned_bytes(size_bytes)
        return offset_bytes

    def add_plan(self, plan: Plan, at: Places) -> None:
        """Adds the launches of ``plan``.  at: the location of each tensor with another uid here, or none."""
        own_bytes = self.reserve(plan.workspace_bytes)
        for launch in plan.launches:
            arguments = tuple(moved(argument, at, own_bytes) for argument in launch.arguments)
            self.add(plan.kernels[launch.kernel], replace(launch, arguments=arguments))
