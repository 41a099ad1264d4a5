"""Lines of values that kernels transform in shared memory: the host side of ``windows.cuh``."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.conv.fft.tiling import butterfly_values, line_bytes
from lowdnn.engines.launch import ceil_div, ceil_power, i32, is_dependent
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, Launch, Struct, Work

#: Values of all lines of a block, if it has more than one: less than 48 KiB of shared memory, which every device has.
_BLOCK_VALUES = 1 << 13


@dataclass(frozen=True)
class Lines:
    """The lines that a kernel transforms.  values: real values of each.

    count: pairs of indices of a tensor.  windows: lines of each pair.  are_near: whether lines of neighbouring pairs
    are neighbours in memory; then so are their threads.
    """

    values: int
    count: int
    windows: int
    are_near: bool

    @classmethod
    def of(cls, tensor: Tensor, values: int, count: int, windows: int) -> Lines:
        steps = [abs(s) for s, extent in zip(tensor.strides[2:], tensor.dims[2:], strict=True) if extent > 1]
        are_near = tensor.dims[1] > 1 and abs(tensor.strides[1]) < min(steps, default=0)
        return cls(values, count, windows, are_near)

    @property
    def points(self) -> int:
        """Complex values of a line."""
        return self.values // 2

    @property
    def butterfly(self) -> int:
        """Complex values of a butterfly."""
        return butterfly_values(self.points)

    @property
    def own(self) -> int:
        """Lines of a block, a power of two."""
        return max(1, min(_BLOCK_VALUES // self.values, ceil_power(self.count)))

    @property
    def threads(self) -> int:
        """One for each butterfly of the block's lines, 512 at most."""
        return self.own * self.points // self.butterfly

    @property
    def blocks(self) -> int:
        return ceil_div(self.count, self.own) * self.windows

    @property
    def passes(self) -> int:
        """Passes of a transform; the first one has what radix is left."""
        return ceil_div(self.points.bit_length() - 1, self.butterfly.bit_length() - 1)

    def struct(self) -> Struct:
        """The kernel's ``BlockLines``."""
        return Struct(i32((self.own.bit_length() - 1, self.are_near)))

    def launch(self, arguments: Argument, work: Work, arch: ArchSpec) -> Launch:
        return Launch(
            kernel=0,
            grid=(self.blocks, 1, 1),
            block=(self.threads, 1, 1),
            arguments=(arguments,),
            shared_bytes=self.own * line_bytes(self.values),
            work=work,
            overlaps_previous=is_dependent(arch),
        )
