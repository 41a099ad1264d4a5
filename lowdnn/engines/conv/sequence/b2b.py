"""How kernels of back-to-back convolutions divide their work: see ``b2b_lines.cuh``, whose macros and structs this
module fills."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.access import contiguous_elements
from lowdnn.engines.base import Knob
from lowdnn.engines.conv.sequence.tiles import POSITIONS, THREADS
from lowdnn.engines.launch import MAX_GRID_X, ceil_div, ceil_power, divider, i32, i64
from lowdnn.enums import KnobType
from lowdnn.ops.b2b_causal_conv1d import ROWS, B2BCausalConv1d
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, Struct, TensorPointer

#: Positions of a block, from the fewest to the most.
CHUNKS = (64, 128, 256, 512, 1024)
#: The most positions of a sequence: room for the chunk and the halos behind the last.
_MOST = 2**30


@dataclass(frozen=True)
class BlockParams:
    """The macros of both kernels: the types of the inputs, the compute type, and the block."""

    X: str
    WP: str
    WM: str
    SKIP: str
    COMPUTE: str
    X_WIDTH: int
    THREADS: int = THREADS
    LANES: int = THREADS
    CHANNELS: int = 1
    ALONG_CHANNELS: int = 0


@dataclass(frozen=True)
class Blocks:
    """The blocks of an operation.

    lines: the lines that have the halos of both filters before the chunk, and after it where is_two_sided.
    short_lines: the lines that have the mixer's halo before it.
    """

    operands: B2BCausalConv1d
    lines: int
    short_lines: int = 0
    is_two_sided: bool = False

    @property
    def params(self) -> BlockParams:
        operands = self.operands
        return BlockParams(
            X=dtypes.info(operands.x.data_type).c_type,
            WP=dtypes.info(operands.weights_proj.data_type).c_type,
            WM=dtypes.info(operands.weights_mixer.data_type).c_type,
            SKIP=dtypes.info(operands.skip_bias.data_type).c_type,
            COMPUTE=dtypes.info(operands.compute_type).c_type,
            X_WIDTH=width(operands.x),
        )

    @cached_property
    def halos(self) -> tuple[int, int]:
        """The taps of the projection and of the mixer, rounded up to whole groups of positions."""
        taps = self.operands.projection_taps, self.operands.mixer_taps
        projection, mixer = (ceil_div(count, POSITIONS) * POSITIONS for count in taps)
        return projection, mixer

    def shared_bytes(self, chunk: int) -> int:
        projection, mixer = self.halos
        both = (projection + mixer) * (2 if self.is_two_sided else 1)
        elements = self.lines * (both + chunk) + self.short_lines * (mixer + chunk) + ROWS * projection + mixer
        return elements * dtypes.info(self.operands.compute_type).storage.itemsize

    def chunks(self, chunk: int) -> int:
        """Blocks of a row."""
        return max(1, ceil_div(self.operands.dims[2], chunk))

    def blocks(self, chunk: int) -> int:
        batch, channels, _ = self.operands.dims
        return batch * channels * self.chunks(chunk)

    def knobs(self, arch: ArchSpec, usual: int) -> tuple[Knob, ...]:
        """TILE_SIZE: positions of a block. ``usual`` of them, or as many as there are, if shared memory has room."""
        fits = tuple(chunk for chunk in CHUNKS if self.shared_bytes(chunk) <= arch.shared_bytes_per_block)
        wanted = min(usual, max(CHUNKS[0], ceil_power(max(self.operands.dims[2], 1))))
        chosen = max((chunk for chunk in fits if chunk <= wanted), default=CHUNKS[0])
        return (Knob("chunk", KnobType.TILE_SIZE, fits or CHUNKS[:1], chosen, "positions of a block"),)

    def limit(self, arch: ArchSpec) -> str:
        """The reason why the kernels have no room for the filters or cannot count the positions, or ''."""
        needed, room = self.shared_bytes(CHUNKS[0]), arch.shared_bytes_per_block
        if needed > room:
            taps = f"{self.operands.projection_taps} and {self.operands.mixer_taps} taps, which need {needed}"
            return f"weights_mixer.dims: expected filters for {room} bytes of shared memory, got {taps}"
        if (length := self.operands.dims[2]) > _MOST:
            return f"x.dims: expected at most {_MOST} positions, got {length}"
        blocks = self.blocks(CHUNKS[0])
        return f"x.dims: expected at most {MAX_GRID_X} blocks, got {blocks}" if blocks > MAX_GRID_X else ""

    def fields(self, chunk: int, others: tuple[Tensor | None, ...]) -> tuple[Argument, ...]:
        """The last fields of both kernels' ``Params``: strides of x, of ``others``, of the filters, and the sizes."""
        operands = self.operands
        filters = (operands.weights_proj, operands.weights_mixer, operands.skip_bias)
        strides = tuple((0, 0, 0) if tensor is None else tensor.strides for tensor in (operands.x, *others))
        strides += tuple(tensor.strides for tensor in filters)
        taps = operands.projection_taps, operands.mixer_taps
        sizes = (
            *divider(operands.channels),
            *divider(self.chunks(chunk)),
            *i32((operands.dims[2], chunk, *taps, *self.halos)),
        )
        return (*i64(tuple(stride for some in strides for stride in some)), Struct(sizes))

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """The first fields of both kernels' ``Params``."""
        operands = self.operands
        inputs = (operands.x, operands.weights_proj, operands.weights_mixer, operands.skip_bias)
        return tuple(TensorPointer(tensor.uid) for tensor in inputs)


def width(tensor: Tensor) -> int:
    """Elements of an access along the positions; 0 where those are strided."""
    return min(POSITIONS, contiguous_elements(tensor, tensor.strides, 2)) if tensor.strides[2] == 1 else 0
