"""Gradients of attention in fp8: operands as fp16 in the workspace, which holds each of their values, and the numbers
and largest magnitudes beside them (``attention_backward.cuh``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from lowdnn import dtypes
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.engines.attention.heads import Heads
from lowdnn.engines.launch import (
    MAX_EXTENT,
    WORKSPACE_ALIGNMENT_BYTES,
    aligned_bytes,
    bytes_of,
    ceil_div,
    divider,
    i32,
    i64,
    macros,
)
from lowdnn.enums import DataType
from lowdnn.ops.sdpa_fp8_backward import SdpaFp8Backward
from lowdnn.ops.tensor import packed_strides
from lowdnn.plan import KernelRef, Launch, Scalar, ScalarType, Struct, TensorPointer, Work

#: Ports that are widened.
_PORTS = ("q", "k", "v", "d_o")
#: Elements of a thread.
_PIECE = 8
#: Threads of a block.
_THREADS = 256


@dataclass(frozen=True)
class WidenParams:
    """Macros of ``attention_backward_widen.cu``."""

    TYPE: str
    GRADIENT_TYPE: str
    THREADS: int


@dataclass(frozen=True)
class Fp8Operands:
    """heads: the operation's, by port.  first_byte: the start of the widened operands in the workspace."""

    operation: SdpaFp8Backward
    heads: Mapping[str, Heads]
    first_byte: int

    @property
    def end_byte(self) -> int:
        """The end of the copies in the workspace."""
        return self.first_byte + sum(aligned_bytes(heads.tensor.span_bytes) for heads in self.wide.values())

    @property
    def numbers(self) -> Struct:
        """The kernels' ``Fp8Numbers``."""
        largest = (
            Scalar(ScalarType.I64, 0) if tensor.is_virtual else TensorPointer(tensor.uid)
            for tensor in self.operation.largest
        )
        return Struct((*(TensorPointer(tensor.uid) for tensor in self.operation.numbers), *largest))

    @cached_property
    def wide(self) -> dict[str, Heads]:
        """The widened operands, packed, by port."""
        found, first_byte = {}, self.first_byte
        for port in _PORTS:
            tensor = self.heads[port].tensor
            wide = replace(
                tensor,
                data_type=DataType.HALF,
                strides=packed_strides(tensor.dims),
                alignment_bytes=WORKSPACE_ALIGNMENT_BYTES,
            )
            heads = Heads.of(wide, self.operation.q.dims[1], row_axis=2)
            found[port] = replace(heads, first_byte=first_byte)
            first_byte += aligned_bytes(wide.span_bytes)
        return found

    def refuse(self) -> str:
        """Why an operand has more elements than the kernel can count, or an empty string."""
        for port in _PORTS:
            if self.heads[port].tensor.element_count // _PIECE > MAX_EXTENT:
                got = self.heads[port].tensor.element_count
                return f"{port}.dims: expected at most {MAX_EXTENT * _PIECE} elements of fp8, got {got}"
        return ""

    def widen(self) -> tuple[KernelRef, Launch]:
        """The launch that widens all operands; the largest magnitudes become 0."""
        kinds = [dtypes.info(tensor.data_type) for tensor in (self.operation.q, self.operation.d_o)]
        kernel = KernelRef(
            name=f"attention_backward_widen_{kinds[0].short_name}_{kinds[1].short_name}_sm80",
            source="attention/attention_backward_widen.cu",
            target=BASE_TARGET,
            parameters=macros(WidenParams(kinds[0].c_type, kinds[1].c_type, _THREADS)),
        )
        tensors = [self.heads[port].tensor for port in _PORTS]
        most = max(tensor.element_count for tensor in tensors) // _PIECE
        moved = bytes_of(tuple(tensors)) + self.end_byte - self.first_byte
        arguments = Struct((*map(self._operand, _PORTS), self.numbers))
        # At least one block, so that the largest magnitudes become 0 even if no operand has elements.
        grid = (max(1, ceil_div(most, _THREADS)), len(_PORTS), 1)
        return kernel, Launch(0, grid, (_THREADS, 1, 1), (arguments,), work=Work(bytes=moved))

    def _operand(self, port: str) -> Struct:
        heads = self.heads[port]
        _, head_count, rows, size = heads.tensor.dims
        # Heads of k and v count as not shared: they are widened once.
        own = Struct((TensorPointer(heads.tensor.uid), *i64(heads.strides), *i32((1,))))
        extents = (size // _PIECE, rows, head_count)
        return Struct(
            (
                own,
                self.wide[port].pointer,
                *i32((heads.tensor.element_count // _PIECE,)),
                *(Struct(divider(max(1, extent))) for extent in extents),
            )
        )
