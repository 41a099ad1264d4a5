"""The plan of ``conv_fft_targets.cu``: windows of the target from spectra, or from the source itself."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor, generate
from lowdnn.engines.conv.fft import cost
from lowdnn.engines.conv.fft.correlation import SpectralCorrelation
from lowdnn.engines.conv.fft.lines import Lines
from lowdnn.engines.conv.fft.spectra import dividers, source_windows
from lowdnn.engines.conv.fft.tiling import TiledAxis, Tiling
from lowdnn.engines.launch import dependent_target, i32, macros, target_label
from lowdnn.enums import DataType
from lowdnn.plan import KernelRef, Launch, Pointer, Struct, Work


@dataclass(frozen=True)
class Params:
    """The macros of ``conv_fft_targets.cu``, described there."""

    POINTS: int
    SPATIAL: int
    X_TYPE: str
    FUSED: int
    HALF: int
    SWAPPED: int
    SPACED: int


def is_fused(correlation: SpectralCorrelation, tiling: Tiling) -> bool:
    """Whether a window of the target needs one window of the source and one piece of the filter."""
    return correlation.depth == tiling.pieces == 1 and not correlation.is_filter


def is_half(correlation: SpectralCorrelation, tiling: Tiling) -> bool:
    """Whether the kernel has no second halves: none of targets nor, if ``is_fused``, of sources."""
    if not tiling.targets_are_half:
        return False
    return not is_fused(correlation, tiling) or source_windows(correlation, tiling).are_half


def target_lines(correlation: SpectralCorrelation, tiling: Tiling) -> Lines:
    output = correlation.operation.output
    return Lines.of(output, tiling.values, correlation.rows * correlation.maps, tiling.tiles)


def targets_step(
    correlation: SpectralCorrelation, tiling: Tiling, spectra: Pointer, arch: ArchSpec
) -> tuple[KernelRef, Launch]:
    """The kernel and the launch that write the target.  spectra: its windows' or, if ``is_fused``, the
    filters'."""
    lines, target, functor = target_lines(correlation, tiling), dependent_target(arch), _functor(correlation)
    fuses, sources = is_fused(correlation, tiling), source_windows(correlation, tiling)
    read = dtypes.info(correlation.source.data_type if fuses else DataType.FLOAT)
    params = Params(
        POINTS=tiling.points,
        SPATIAL=correlation.spatial,
        X_TYPE=read.c_type,
        FUSED=int(fuses),
        HALF=int(is_half(correlation, tiling)),
        SWAPPED=int(correlation.is_filter),
        SPACED=int(any(axis.target_spacing > 1 for axis in correlation.axes)),
    )
    letters = "h" * params.HALF + "t" * params.SWAPPED + "s" * params.SPACED
    form = f"_{read.short_name}" * params.FUSED + f"_{params.SPATIAL}d{letters}"
    kernel = KernelRef(
        name=f"conv_fft_targets_{params.POINTS}{form}_{target_label(target)}_{functor.digest}",
        source="conv/fft/conv_fft_targets.cu",
        target=target,
        parameters=macros(params),
        generated=functor.text,
    )
    arguments = [
        Struct(
            (
                lines.struct(),
                spectra,
                *dividers((tiling.tiles, *(axis.tiles for axis in tiling.axes), *tiling.extents)),
                *(_axis(axis, tiling.target_offset) for axis in tiling.axes),
                _order(correlation, lines, fuses),
                *i32((lines.count,)),
                functor.arguments,
            )
        )
    ]
    if fuses:
        arguments.append(Struct((sources.struct(), *dividers((correlation.columns,)))))
    return kernel, lines.launch(Struct(tuple(arguments)), targets_work(correlation, tiling), arch)


def targets_work(correlation: SpectralCorrelation, tiling: Tiling) -> Work:
    """The work of ``targets_step``'s launch."""
    fuses, half = is_fused(correlation, tiling), is_half(correlation, tiling)
    return cost.targets_work(correlation, target_lines(correlation, tiling), fuses, half)


def _functor(correlation: SpectralCorrelation) -> Functor:
    return generate(correlation.epilogue, accumulator=DataType.FLOAT, vector_axis=len(correlation.epilogue.dims) - 1)


def _order(correlation: SpectralCorrelation, lines: Lines, fuses: bool) -> Struct:
    """The kernel's ``LineOrder``: blocks of one line that share a filter follow each other, so that caches have it."""
    rows_are_inner = fuses and lines.own == 1
    inner = correlation.rows if rows_are_inner else correlation.maps
    return Struct((*dividers((inner,)), *i32((rows_are_inner,))))


def _axis(tiled: TiledAxis, offset: int) -> Struct:
    """The kernel's ``TargetAxis``."""
    return Struct((*i32((tiled.step, offset, tiled.axis.targets)), *dividers((tiled.axis.target_spacing,))))
