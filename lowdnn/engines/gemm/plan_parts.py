"""Kernels, launches and workspace of one plan, collected in launch order."""

from __future__ import annotations

from lowdnn.codegen.functor import Functor
from lowdnn.engines.gemm.output_space import OutputSpace, Slices, reduction_kernel, reduction_launch
from lowdnn.engines.gemm.packing import Packing
from lowdnn.plan import KernelRef, Launch, Pointer, TensorPointer, WorkspacePointer


class PlanParts:
    """Starts empty: a plan without launches."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.workspace_bytes = 0
        self._kernels: list[KernelRef] = []

    @property
    def kernels(self) -> tuple[KernelRef, ...]:
        return tuple(self._kernels)

    def kernel(self, kernel: KernelRef) -> int:
        """The index of ``kernel``, for ``Launch.kernel``."""
        if kernel not in self._kernels:
            self._kernels.append(kernel)
        return self._kernels.index(kernel)

    def reserve(self, size_bytes: int) -> int:
        """The offset of ``size_bytes`` (a multiple of the workspace's alignment) of the workspace."""
        offset_bytes = self.workspace_bytes
        self.workspace_bytes += size_bytes
        return offset_bytes

    def sum_slices(
        self,
        output: OutputSpace,
        functor: Functor,
        vector: int,
        slices: Slices,
        offset_bytes: int,
        stored_bytes: int,
        *,
        overlaps: bool = False,
    ) -> None:
        """A launch that sums the slices at ``offset_bytes`` of the workspace and applies the epilogue.

        overlaps: as a dependent launch, on sm_90a.
        """
        kernel = self.kernel(reduction_kernel(output, functor, vector, slices, overlaps=overlaps))
        launch = reduction_launch(
            kernel, output, functor, vector, slices, offset_bytes, stored_bytes, overlaps=overlaps
        )
        self.launches.append(launch)

    def operand(self, uid: int, packing: Packing | None, *, overlaps: bool = False) -> Pointer:
        """Where a kernel reads tensor ``uid``: in place, or in the workspace, after a launch that packs it there.

        overlaps: as a dependent launch, on sm_90a.
        """
        if packing is None:
            return TensorPointer(uid)
        offset_bytes = self.reserve(packing.size_bytes)
        self.launches.append(packing.launch(self.kernel, offset_bytes, overlaps=overlaps))
        return WorkspacePointer(offset_bytes)
