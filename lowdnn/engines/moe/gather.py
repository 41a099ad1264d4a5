"""Gathered copies of routed rows in the workspace: host side of ``moe_gather.cu``."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.engines.indices import INT32_MAX
from lowdnn.engines.launch import aligned_bytes, bytes_touched, ceil_div, divider, i32, i64
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.enums import MoeGroupedMatmulMode
from lowdnn.ops.moe_grouped_matmul import MoeGroupedMatmul
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer, Work, WorkspacePointer

_THREADS = 256
_CHUNK_BYTES = 16


@dataclass(frozen=True)
class Gather:
    """Rows ``index`` (1, rows, 1) of ``token`` (1, T, K)."""

    token: Tensor
    index: Tensor

    @classmethod
    def of(cls, operation: MoeGroupedMatmul) -> Gather | None:
        """The gather of an operation; None if it gathers nothing."""
        if operation.mode is not MoeGroupedMatmulMode.GATHER or operation.token_index is None:
            return None
        return cls(operation.token, operation.token_index)

    @property
    def rows(self) -> int:
        return self.index.dims[1]

    @property
    def row_chunks(self) -> int:
        return ceil_div(self.token.dims[2] * self.token.element_bytes, _CHUNK_BYTES)

    @property
    def pitch(self) -> int:
        """Elements from one gathered row to the next."""
        return self.row_chunks * _CHUNK_BYTES // self.token.element_bytes

    @property
    def size_bytes(self) -> int:
        return aligned_bytes(self.rows * self.row_chunks * _CHUNK_BYTES)

    @property
    def has_chunks(self) -> bool:
        """Whether every chunk of a row is 16 contiguous bytes, aligned to 16."""
        token, size = self.token, self.token.element_bytes
        pieces = (token.alignment_bytes, token.strides[1] * size, token.dims[2] * size)
        return token.strides[2] == 1 and not any(piece % _CHUNK_BYTES for piece in pieces)

    @property
    def problem(self) -> str:
        """Why the number of chunks exceeds the kernel's indices; empty if it does not."""
        chunks = self.rows * self.row_chunks
        if chunks > INT32_MAX:
            return f"moe_grouped_matmul.token_index: expected at most {INT32_MAX} pieces of 16 bytes, got {chunks}"
        return ""

    def add_to(self, parts: PlanParts) -> WorkspacePointer:
        """Pointer to the gathered rows, after a launch that gathers them."""
        offset_bytes = parts.reserve(self.size_bytes)
        parts.launches.append(self._launch(parts.kernel(self._kernel()), offset_bytes))
        return WorkspacePointer(offset_bytes)

    def _kernel(self) -> KernelRef:
        facts = dtypes.info(self.token.data_type)
        ending = "chunks" if self.has_chunks else "elements"
        return KernelRef(
            name=f"moe_gather_{facts.short_name}_{ending}_sm80",
            source="moe/moe_gather.cu",
            target=BASE_TARGET,
            parameters=(("TYPE", facts.c_type), ("BY_CHUNK", int(self.has_chunks))),
        )

    def _launch(self, kernel: int, offset_bytes: int) -> Launch:
        """The launch that gathers to ``offset_bytes`` of the workspace."""
        token, chunks = self.token, self.rows * self.row_chunks
        strides = (self.index.strides[1], token.strides[1], token.strides[2])
        arguments = Struct(
            (
                TensorPointer(token.uid),
                WorkspacePointer(offset_bytes),
                TensorPointer(self.index.uid),
                *i64(strides),
                Struct(divider(self.row_chunks)),
                *i32((chunks, token.dims[2])),
            )
        )
        moved = self.rows * self.row_chunks * _CHUNK_BYTES
        work = Work(bytes=moved + min(moved, bytes_touched(token)))
        return Launch(kernel, (ceil_div(chunks, _THREADS), 1, 1), (_THREADS, 1, 1), (arguments,), work=work)
