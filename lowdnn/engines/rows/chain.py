"""Launches in order with what lies between them in the workspace, collected into one plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lowdnn.engines.launch import aligned_bytes
from lowdnn.engines.relocation import moved
from lowdnn.plan import KernelRef, Launch, Plan


class Chain:
    """Starts empty: a plan without launches."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.workspace_bytes = 0
        self._kernels: dict[KernelRef, int] = {}

    @property
    def kernels(self) -> tuple[KernelRef, ...]:
        return tuple(self._kernels)

    def kernel(self, kernel: KernelRef) -> int:
        """The index of ``kernel``, for ``Launch.kernel``."""
        return self._kernels.setdefault(kernel, len(self._kernels))

    def reserve(self, size_bytes: int) -> int:
        """The offset of ``size_bytes`` of the workspace."""
        offset_bytes = self.workspace_bytes
        self.workspace_bytes += aligned_bytes(size_bytes)
        return offset_bytes

    def add(self, plan: Plan, intermediates: Mapping[int, int]) -> None:
        """The launches of ``plan``; tensors of these uids lie at these offsets of the workspace."""
        own_bytes = self.reserve(plan.workspace_bytes)
        for launch in plan.launches:
            kernel = self.kernel(plan.kernels[launch.kernel])
            arguments = tuple(moved(argument, intermediates, own_bytes) for argument in launch.arguments)
            self.launches.append(replace(launch, kernel=kernel, arguments=arguments))
