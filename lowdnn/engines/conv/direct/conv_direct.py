"""``conv_direct``: the three convolutions in the true arithmetic of the compute type, without tensor cores.

1 to 3 spatial axes, any strides of the tensors, groups, dilation, separate paddings, flipped filters, every data type
that the operations take, any pointwise epilogue. Forward convolutions that are depthwise or have small groups run on
``conv_grouped.cu``, where a thread owns channels of a patch of outputs. All others run on ``conv_direct.cu`` as
implicit matrix products: backward data by residue classes of the stride, backward filter with a split depth of fixed
order.
"""

from __future__ import annotations

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors, Choices, Knob, Refusal
from lowdnn.engines.conv.direct import grouped, tiled
from lowdnn.engines.conv.direct.geometry import DirectGeometry
from lowdnn.engines.floor import Contraction, Floor, Floored, Multipliers
from lowdnn.engines.indices import MAX_TILED_EXTENT
from lowdnn.engines.launch import MAX_GRID_X
from lowdnn.engines.limits import reduced
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import match_anchored
from lowdnn.ops.convolution import Convolution, ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor, channels_last_strides
from lowdnn.plan import KernelRef
from lowdnn.status import NotSupportedError, Status

#: Limit of positions in the image and its padding, which are 32-bit in the kernels, with room for a marker far outside.
_MAX_POSITION = 2**30 - 1


class ConvDirect(ProblemEngine[DirectGeometry], Floored):
    """See the module's docstring."""

    name = "conv_direct"
    index = 1
    anchors: Anchors = (ConvolutionOperation,)
    limits = reduced(ConvolutionOperation)

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> DirectGeometry | Refusal:
        """Refuses graphs that are not one convolution with a pointwise epilogue, and extents past 32 bits."""
        matched = match_anchored(graph, ConvolutionOperation)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        geometry = DirectGeometry.of(matched)
        reason = _refuse_extents(geometry)
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else geometry

    def floor(self, contraction: Contraction) -> Floor:
        """Backward kernels fetch elements for few maps at a time; forward, small groups have a kernel that does not."""
        if isinstance(contraction, ConvolutionBackwardData | ConvolutionBackwardFilter):
            return Floor(Multipliers.FMA, waste=tiled.least_waste(contraction))
        return Floor(Multipliers.FMA)

    def knobs_of(self, geometry: DirectGeometry, arch: ArchSpec) -> tuple[Knob, ...]:
        """BLOCK_SIZE for forward depthwise convolutions and small groups.

        For the others TILE_N, the filters (in backward data channels) of a thread block, and SPLIT_K_SLC in backward
        filter.
        """
        if grouped.takes(geometry):
            sizes = grouped.BLOCK_SIZES
            return (Knob("block_size", KnobType.BLOCK_SIZE, sizes, 128, "threads of a block"),)
        maps = tiled.best_map_tile(geometry, arch)
        tiles, slices = tiled.map_tiles(geometry), tiled.slice_counts(geometry)
        knobs = [
            Knob("tile_n", KnobType.TILE_N, tiles, maps, "filters, or channels of dx, that one thread block computes")
        ]
        if len(slices) > 1:
            best = tiled.best_slices(geometry, maps, arch)
            knobs.append(
                Knob("split_k", KnobType.SPLIT_K_SLC, slices, best, "slices of the sum, added by a second launch")
            )
        return tuple(knobs)

    def parts(self, geometry: DirectGeometry, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch, and one that sums the slices if the depth is split."""
        if grouped.takes(geometry):
            functor, threads = geometry.functor(), chosen[KnobType.BLOCK_SIZE]
            kernel = grouped.kernel(geometry, threads, functor)
            return PlanParts([(kernel, grouped.launch(geometry, arch, threads, functor))])
        parts = PlanParts()
        tiled.add_parts(parts, geometry, chosen[KnobType.TILE_N], chosen.get(KnobType.SPLIT_K_SLC, 1))
        return parts

    def precompiled(self) -> tuple[KernelRef, ...]:
        """Plain 2-D channels-last convolutions: fp32 at the common tile, and 3x3 depthwise in fp32 and bf16."""
        dense = _plain_geometry(DataType.FLOAT, channels=64, groups=1)
        depthwise = (_plain_geometry(t, channels=128, groups=128) for t in (DataType.FLOAT, DataType.BFLOAT16))
        return (
            tiled.kernel(dense, 64),
            *(grouped.kernel(geometry, 128, geometry.functor()) for geometry in depthwise),
        )


def _refuse_extents(geometry: DirectGeometry) -> str:
    operation, convolution = geometry.operation, geometry.operation.convolution
    image, output = (f"{operation.label}.{port}.dims" for port in (operation.roles[0], operation.output_port))
    padding = zip(convolution.pre_paddings, convolution.post_paddings, strict=True)
    padded = zip(operation.image.dims[2:], padding, strict=True)
    reach = max(extent + before + after for extent, (before, after) in padded)
    limits = (
        (f"{image}: expected padded spatial extents", reach, _MAX_POSITION),
        ("convolution.strides, dilations: expected steps", _longest_step(convolution), _MAX_POSITION),
        (
            f"{output}: expected a number of elements of one map",
            tiled.place_count(geometry),
            MAX_TILED_EXTENT,
        ),
        (f"{output}: expected sums of a number of terms", max(geometry.depth, geometry.filters), MAX_TILED_EXTENT),
        (f"{output}: expected a number of tiles", tiled.block_count(geometry, 8, 1), MAX_GRID_X),
    )
    for rule, got, limit in limits:
        if got > limit:
            return f"{rule} of at most {limit}, got {got}"
    return ""


def _longest_step(convolution: Convolution) -> int:
    return max(*convolution.strides, *convolution.dilations)


def _plain_geometry(data_type: DataType, channels: int, groups: int) -> DirectGeometry:
    """A 3x3 channels-last convolution without epilogue; its extents are run-time values."""
    image = (1, channels, 16, 16)
    convolution = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (1, 1), (1, 1))
    x, w, y = (
        Tensor(uid, data_type, dims, channels_last_strides(dims), alignment_bytes=16)
        for uid, dims in ((1, image), (2, (channels, channels // groups, 3, 3)), (3, image))
    )
    graph = OperationGraph([ConvolutionForward(convolution, x, w, y)])
    matched = match_anchored(graph, ConvolutionOperation)
    if isinstance(matched, str):
        raise NotSupportedError(matched)
    return DirectGeometry.of(matched)
