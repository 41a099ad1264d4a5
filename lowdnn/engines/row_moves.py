"""The division of rows among threads, in kernels that copy rows between two tensors (B, H, S, D)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn.engines.indices import counter_type
from lowdnn.engines.launch import ACCESS_BYTES, MAX_EXTENT, MAX_GRID_X, ceil_div, divider
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Launch, Scalar, Struct, Work

#: Threads of a block.
THREADS = 128
#: The C++ type as which elements are copied, by their bytes.
_INTEGERS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


@dataclass(frozen=True)
class RowMove:
    """A copy of rows between ``tensors``, which have one type. A thread copies ``vector`` adjacent elements of a row.

    dims: (B, H, S, D) of the larger tensor, in elements.
    """

    dims: tuple[int, ...]
    tensors: tuple[Tensor, Tensor]

    @property
    def integer(self) -> str:
        """The C++ type as which elements are copied."""
        return _INTEGERS[self.tensors[0].element_bytes]

    @property
    def vector(self) -> int:
        """Elements of a row that a thread copies."""
        return ACCESS_BYTES // self.tensors[0].element_bytes

    @property
    def radices(self) -> tuple[int, ...]:
        """The numbers of batches, heads, rows, and groups of ``vector`` elements in a row."""
        *outer, size = self.dims
        return (*outer, ceil_div(size, self.vector))

    @property
    def groups(self) -> int:
        """Groups in the whole tensor, one for each thread."""
        return prod(self.radices)

    @property
    def blocks(self) -> int:
        return ceil_div(self.groups, THREADS)

    @property
    def index(self) -> str:
        """The C++ type that counts groups."""
        return counter_type(self.groups)

    @property
    def width(self) -> int:
        """Elements of one access to both tensors; 0 if rows are not contiguous."""
        if any(tensor.strides[3] != 1 for tensor in self.tensors):
            return 0
        width = self.vector
        while width > 1 and not all(_begins_at(tensor, width) for tensor in self.tensors):
            width //= 2
        return width

    @property
    def axes(self) -> tuple[Scalar, ...]:
        """The kernels' dividers by ``radices``, the first of which they do not use."""
        return tuple(field for radix in (1, *self.radices[1:]) for field in divider(radix))

    def launch(self, arguments: Struct, moved_bytes: int) -> Launch:
        """The launch, with a thread for each group and one argument.  moved_bytes: bytes read and written."""
        return Launch(
            kernel=0,
            grid=(self.blocks, 1, 1),
            block=(THREADS, 1, 1),
            arguments=(arguments,),
            work=Work(bytes=moved_bytes),
        )

    def refuse(self) -> str:
        """The reason why the kernels cannot count the groups, or an empty string."""
        extent = max(self.radices[1:])
        if extent <= MAX_EXTENT and self.blocks <= MAX_GRID_X:
            return ""
        return f"dims: expected at most {MAX_EXTENT} along an axis and {MAX_GRID_X} blocks, got {extent}, {self.blocks}"


def _begins_at(tensor: Tensor, width: int) -> bool:
    """Whether each row begins at a multiple of ``width`` elements."""
    is_aligned = tensor.alignment_bytes % (width * tensor.element_bytes) == 0
    return is_aligned and not any(stride % width for stride in tensor.strides[:3])
