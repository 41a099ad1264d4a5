"""``conv_direct``: convolution forward in the true arithmetic of the compute type, without tensor cores.

1 to 3 spatial axes, any strides of x, w and y, groups, dilation, separate paddings, flipped filters, every data type
that the operation takes, any pointwise epilogue. Depthwise convolutions and small groups run on ``conv_grouped.cu``
(a thread owns channels of a patch of outputs), all others on ``conv_direct.cu`` (implicit matrix product).
"""

from __future__ import annotations

from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor, generate
from lowdnn.engines.base import BEHAVIOR_NOTES, Choices, Knob, Refusal, accepted, plan_of, resolve_choices
from lowdnn.engines.conv import direct_grouped, direct_tiled
from lowdnn.engines.conv.direct_geometry import DirectGeometry
from lowdnn.engines.gemm.simt_tile import MAX_TILED_EXTENT
from lowdnn.engines.launch import MAX_GRID_X
from lowdnn.enums import DataType, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import match_anchored
from lowdnn.ops.convolution import Convolution, ConvolutionForward
from lowdnn.ops.tensor import Tensor, channels_last_strides
from lowdnn.plan import KernelRef, Launch, Plan
from lowdnn.status import NotSupportedError, Status

#: Positions in x and its padding are 32-bit in the kernels, with room for a marker far outside.
_MAX_POSITION = 2**30 - 1


class ConvDirect:
    """See the module's docstring."""

    name = "conv_direct"
    index = 1
    numerical_notes: tuple[NumericalNote, ...] = ()
    behavior_notes = BEHAVIOR_NOTES

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses what is not one convolution with a pointwise epilogue, and extents past 32 bits."""
        geometry = graph.derive(self._geometry)
        return geometry if isinstance(geometry, Refusal) else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """BLOCK_SIZE for depthwise convolutions and small groups, TILE_N (filters of a thread block) for the others."""
        return (_knob(accepted(graph.derive(self._geometry)), arch),)

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """One launch, none where y is empty."""
        geometry = accepted(graph.derive(self._geometry))
        chosen = resolve_choices(self.name, (_knob(geometry, arch),), choices)
        kernels: tuple[KernelRef, ...] = ()
        launches: tuple[Launch, ...] = ()
        if geometry.operation.y.element_count:
            kernel, launch = _kernel_and_launch(geometry, arch, chosen)
            kernels, launches = (kernel,), (launch,)
        return plan_of(self, graph, arch, chosen, kernels, launches)

    def precompiled(self) -> tuple[KernelRef, ...]:
        """Plain 2-D channels-last convolutions: fp32 at the common tile, and 3x3 depthwise in fp32 and bf16."""
        dense = _plain_geometry(DataType.FLOAT, channels=64, groups=1)
        depthwise = (_plain_geometry(t, channels=128, groups=128) for t in (DataType.FLOAT, DataType.BFLOAT16))
        return (
            direct_tiled.kernel(dense, 64, _functor(dense)),
            *(direct_grouped.kernel(geometry, 128, _functor(geometry)) for geometry in depthwise),
        )

    def _geometry(self, graph: OperationGraph) -> DirectGeometry | Refusal:
        matched = match_anchored(graph, ConvolutionForward)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        geometry = DirectGeometry.of(matched)
        reason = _refuse_extents(geometry)
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else geometry


def _refuse_extents(geometry: DirectGeometry) -> str:
    convolution = geometry.operation.convolution
    padding = zip(convolution.pre_paddings, convolution.post_paddings, strict=True)
    padded = zip(geometry.operation.x.dims[2:], padding, strict=True)
    reach = max(extent + before + after for extent, (before, after) in padded)
    pixels = direct_tiled.pixel_count(geometry)
    depth = geometry.group_channels * geometry.tap_count
    limits = (
        ("x.dims: expected padded spatial extents", reach, _MAX_POSITION),
        ("y.dims: expected a number of pixels", pixels, MAX_TILED_EXTENT),
        ("w.dims: expected a number of products", max(depth, geometry.filters), MAX_TILED_EXTENT),
        ("y.dims: expected a number of tiles", direct_tiled.block_count(geometry, 8), MAX_GRID_X),
    )
    for rule, got, limit in limits:
        if got > limit:
            return f"convolution_forward.{rule} of at most {limit}, got {got}"
    return ""


def _knob(geometry: DirectGeometry, arch: ArchSpec) -> Knob:
    if direct_grouped.takes(geometry):
        sizes = direct_grouped.BLOCK_SIZES
        return Knob("block_size", KnobType.BLOCK_SIZE, sizes, 128, "threads of a block")
    tiles = direct_tiled.filter_tiles(geometry)
    default = direct_tiled.best_filter_tile(geometry, arch)
    return Knob("tile_n", KnobType.TILE_N, tiles, default, "filters that one thread block computes")


def _kernel_and_launch(
    geometry: DirectGeometry, arch: ArchSpec, chosen: dict[KnobType, int]
) -> tuple[KernelRef, Launch]:
    functor = _functor(geometry)
    if direct_grouped.takes(geometry):
        threads = chosen[KnobType.BLOCK_SIZE]
        kernel = direct_grouped.kernel(geometry, threads, functor)
        return kernel, direct_grouped.launch(geometry, arch, threads, functor)
    filters = chosen[KnobType.TILE_N]
    return direct_tiled.kernel(geometry, filters, functor), direct_tiled.launch(geometry, filters, functor)


def _functor(geometry: DirectGeometry) -> Functor:
    return generate(geometry.epilogue, accumulator=geometry.accumulator, vector_axis=geometry.vector_axis)


def _plain_geometry(data_type: DataType, channels: int, groups: int) -> DirectGeometry:
    """A 3x3 channels-last convolution without epilogue; its extents are run-time values."""
    image = (1, channels, 16, 16)
    convolution = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (1, 1), (1, 1))
    x, w, y = (
        Tensor(uid, data_type, dims, channels_last_strides(dims), alignment_bytes=16)
        for uid, dims in ((1, image), (2, (channels, channels // groups, 3, 3)), (3, image))
    )
    matched = match_anchored(OperationGraph([ConvolutionForward(convolution, x, w, y)]), ConvolutionForward)
    if isinstance(matched, str):
        raise NotSupportedError(matched)
    return DirectGeometry.of(matched)
