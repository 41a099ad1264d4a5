"""``conv_fft``: the three convolutions of stride 1 as products of spectra, in fp32.

1 to 3 spatial axes, any layouts, groups, dilations, paddings, flipped filters of any extent; fp16, bf16 and fp32 in
memory; any pointwise epilogue. Sources are cut into windows that overlap (``tiling.py``), filters too if they are long.
Kernels: ``conv_fft_spectra.cu`` transforms windows of the filter into the workspace. Where a target needs one channel
and one piece of a filter, ``conv_fft_targets.cu`` does all else in one launch. Otherwise the source is transformed too,
and ``conv_fft_product.cu`` sums products of the two.

A transform's error is relative to the norm of a window, not to an element, so that a large element adds to the errors
of others, and a NaN or an infinity fills its window. For windows of M values the root mean square of errors is at most
(log2(M) + 2) / 4 * eps * rms(source) * rms(taps) * sqrt(terms of a sum). For values of unit size, four times that is
within the tolerance of contractions for every M, since 1e-5 + eps * terms is at least 18 eps * sqrt(terms).
"""

from __future__ import annotations

from math import prod

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors, Choices, Knob, Refusal
from lowdnn.engines.conv.fft import cost
from lowdnn.engines.conv.fft.correlation import SpectralCorrelation
from lowdnn.engines.conv.fft.spectra import source_windows, spectra_step, spectra_work, tap_windows
from lowdnn.engines.conv.fft.spectral_product import product_blocks, product_step
from lowdnn.engines.conv.fft.targets import is_fused, target_lines, targets_step, targets_work
from lowdnn.engines.conv.fft.tiling import COMPLEX_BYTES, WINDOW_VALUES, Tiling, line_bytes, tilings
from lowdnn.engines.floor import Contraction, Floor, Floored, Multipliers
from lowdnn.engines.launch import MAX_GRID_X
from lowdnn.engines.limits import fused
from lowdnn.engines.model.plan_time import launch_us
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import match_anchored
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.plan import Launch, Work, WorkspacePointer
from lowdnn.status import Status

#: Products of spectra that take as long as a transform.
_TRANSFORM_PRODUCTS = 12


class ConvFft(ProblemEngine[SpectralCorrelation], Floored):
    """See the module's docstring."""

    name = "conv_fft"
    index = 54
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.FFT,)
    anchors: Anchors = (ConvolutionOperation,)
    limits = fused(ConvolutionOperation)

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> SpectralCorrelation | Refusal:
        """Refuses graphs that are not one convolution with a pointwise epilogue, strides, and other data types."""
        matched = match_anchored(graph, ConvolutionOperation)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        correlation = SpectralCorrelation.of(matched)
        reason = correlation.refuse()
        if not reason and not _is_countable(correlation, _tiling(correlation, _window_values(arch)[-1])):
            expected = f"at most {MAX_GRID_X} windows of all images and channels"
            reason = f"{correlation.operation.label}: expected {expected}, got more"
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else correlation

    def floor(self, contraction: Contraction) -> Floor:
        """Each value is transformed at least once; with several channels in a group, products are summed."""
        if not isinstance(contraction, ConvolutionOperation):
            return Floor(Multipliers.FMA)
        image, filters, response = contraction.image.dims, contraction.filter.dims, contraction.response.dims
        flops = cost.LEAST_VALUE_FLOPS * (prod(image) + prod(response))
        if filters[1] > 1:
            flops += (
                cost.LEAST_TERM_FLOPS * image[0] * filters[0] * filters[1] * prod(map(min, image[2:], response[2:]))
            )
        return Floor(Multipliers.FMA, launches=2, waste=flops / (contraction.flops or 1))

    def knobs_of(self, correlation: SpectralCorrelation, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_SIZE."""
        tilings = [_tiling(correlation, values) for values in _window_values(arch)]
        countable = [tiling for tiling in tilings if _is_countable(correlation, tiling)]
        best = min(countable, key=lambda tiling: _estimated_us(correlation, tiling, arch))
        values = tuple(tiling.values for tiling in countable)
        return (Knob("values", KnobType.TILE_SIZE, values, best.values, "real values of a transform"),)

    def parts(self, correlation: SpectralCorrelation, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """Two launches where a target needs one channel and one piece of a filter; otherwise four."""
        tiling = _tiling(correlation, chosen[KnobType.TILE_SIZE])
        parts, taps = PlanParts(), tap_windows(correlation, tiling)
        of_taps = WorkspacePointer(parts.reserve(taps.bytes))
        parts.add(*spectra_step(taps, 1 / tiling.points, of_taps, arch, conjugates=not tiling.convolves))
        if is_fused(correlation, tiling):
            parts.add(*targets_step(correlation, tiling, of_taps, arch))
            return parts
        sources, targets = source_windows(correlation, tiling), target_lines(correlation, tiling)
        of_sources = WorkspacePointer(parts.reserve(sources.bytes))
        sums = WorkspacePointer(parts.reserve(targets.count * targets.windows * tiling.points * COMPLEX_BYTES))
        parts.add(*spectra_step(sources, 1.0, of_sources, arch))
        parts.add(*product_step(correlation, tiling, (of_sources, of_taps), sums, arch))
        parts.add(*targets_step(correlation, tiling, sums, arch))
        return parts


def _window_values(arch: ArchSpec) -> tuple[int, ...]:
    """The values of transforms for which a block has shared memory."""
    return tuple(values for values in WINDOW_VALUES if line_bytes(values) <= arch.shared_bytes_per_block)


def _is_countable(correlation: SpectralCorrelation, tiling: Tiling) -> bool:
    """Whether a grid has room for all windows, and 31 bits for the number of a row's window, which products count."""
    blocks = (blocks for blocks, _ in _launches(correlation, tiling))
    return max(correlation.rows * tiling.tiles, *blocks) <= MAX_GRID_X


def _tiling(correlation: SpectralCorrelation, values: int) -> Tiling:
    """The tiling with the fewest transforms of ``values`` values; a product counts as a part of one."""
    sources, targets = prod(correlation.source.dims[:2]), correlation.rows * correlation.maps

    def transforms(tiling: Tiling) -> float:
        terms = correlation.depth * tiling.pieces
        return sources * tiling.windows + targets * tiling.tiles * (1 + terms / _TRANSFORM_PRODUCTS)

    return min(tilings(correlation, values), key=transforms)


def _estimated_us(correlation: SpectralCorrelation, tiling: Tiling, arch: ArchSpec) -> float:
    """Estimated microseconds of all launches."""
    launches = (Launch(0, (n, 1, 1), (1, 1, 1), (), work=work) for n, work in _launches(correlation, tiling))
    return sum(launch_us(launch, arch) for launch in launches)


def _launches(correlation: SpectralCorrelation, tiling: Tiling) -> list[tuple[int, Work]]:
    """The blocks and the work of each launch."""
    taps, targets = tap_windows(correlation, tiling), target_lines(correlation, tiling)
    fuses = is_fused(correlation, tiling)
    launches = [
        (taps.lines.blocks, spectra_work(taps)),
        (targets.blocks, targets_work(correlation, tiling)),
    ]
    if not fuses:
        sources = source_windows(correlation, tiling)
        launches.append((sources.lines.blocks, spectra_work(sources)))
        launches.append((product_blocks(correlation, tiling), cost.product_work(correlation, tiling)))
    return launches
