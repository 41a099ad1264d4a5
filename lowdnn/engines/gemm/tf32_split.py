"""Columns of products by TF32, split into high and low parts in the workspace: host side of ``tf32_split.cu``."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn.arch.targets import WGMMA_TARGET
from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES
from lowdnn.engines.indices import MAX_INDEX
from lowdnn.engines.launch import ACCESS_BYTES, ceil_div, divider, i32, i64, macros
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.plan import KernelRef, Launch, Pointer, Struct, Work, WorkspacePointer

#: Bytes of an element.
_ELEMENT_BYTES = 4
#: Elements of k in a block, whose high parts and low parts follow each other.
_BLOCK = STAGE_ROW_BYTES // _ELEMENT_BYTES
#: Elements of a thread.
_GROUP = ACCESS_BYTES // _ELEMENT_BYTES
_THREADS = 256


@dataclass(frozen=True)
class Params:
    """Macros of ``tf32_split.cu``."""

    AXES: int


@dataclass(frozen=True)
class Tf32Split:
    """Rows of ``depth`` contiguous elements of FLOAT, which lie at ``strides`` (elements) along axes of ``extents``.

    Every row begins at a multiple of 16 bytes.
    """

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    depth: int

    @property
    def row_elements(self) -> int:
        """Elements of a split row: both parts of whole blocks."""
        return 2 * self._blocks * _BLOCK

    @property
    def split_strides(self) -> tuple[int, ...]:
        """Strides of the split rows in elements, along the same axes."""
        return tuple(prod(self.extents[axis + 1 :]) * self.row_elements for axis in range(len(self.extents)))

    @property
    def size_bytes(self) -> int:
        return prod(self.extents) * self.row_elements * _ELEMENT_BYTES

    @property
    def moved_bytes(self) -> int:
        """Bytes of device memory that the launch reads and writes."""
        return prod(self.extents) * self.depth * _ELEMENT_BYTES + self.size_bytes

    @property
    def problem(self) -> str:
        """Why the kernel cannot count the elements; empty if it can."""
        items = self._items
        return "" if items <= MAX_INDEX else f"at most {MAX_INDEX} groups of {_GROUP} elements to split, got {items}"

    def add_to(self, parts: PlanParts, source: Pointer) -> WorkspacePointer:
        """Adds a dependent launch that splits the rows at ``source``; returns the pointer to the split rows."""
        offset_bytes = parts.reserve(self.size_bytes)
        target = WorkspacePointer(offset_bytes)
        extents = tuple(Struct(divider(extent)) for extent in self.extents)
        groups = Struct(divider(self._row_groups))
        counts = i32((self.depth, self._items))
        arguments = Struct((source, target, *i64(self.strides), *extents, groups, *counts))
        launch = Launch(
            parts.kernel(self._kernel),
            grid=(ceil_div(self._items, _THREADS), 1, 1),
            block=(_THREADS, 1, 1),
            arguments=(arguments,),
            work=Work(bytes=self.moved_bytes),
            overlaps_previous=True,
        )
        parts.launches.append(launch)
        return target

    @property
    def _blocks(self) -> int:
        return ceil_div(self.depth, _BLOCK)

    @property
    def _row_groups(self) -> int:
        return self._blocks * _BLOCK // _GROUP

    @property
    def _items(self) -> int:
        return prod(self.extents) * self._row_groups

    @property
    def _kernel(self) -> KernelRef:
        params = Params(AXES=len(self.extents))
        return KernelRef(
            name=f"gemm_tf32_split_{params.AXES}_sm90a",
            source="gemm/tf32_split.cu",
            target=WGMMA_TARGET,
            parameters=macros(params),
        )
