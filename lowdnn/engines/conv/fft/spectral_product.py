"""The plan of ``conv_fft_product.cu``: for every value of the spectra, the sum of products over depth and pieces."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.conv.fft import cost
from lowdnn.engines.conv.fft.correlation import SpectralCorrelation, Steps
from lowdnn.engines.conv.fft.spectra import dividers
from lowdnn.engines.conv.fft.tiling import Tiling
from lowdnn.engines.launch import ceil_div, dependent_target, i32, i64, is_dependent, macros, target_label
from lowdnn.plan import KernelRef, Launch, Struct, WorkspacePointer

_LANES = 32


@dataclass(frozen=True)
class ProductTile:
    """The sums of a thread, and the warps of a block, along rows, columns and slices of 32 values."""

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    slices: int = 1

    @classmethod
    def of(cls, pairs: int, columns: int, points: int) -> ProductTile:
        """The tile for so many pairs of row and tile, columns of a group, and values of a transform."""
        if pairs == 1:
            return cls(1, 4, 1, 4) if columns > 1 else cls(1, 1, 1, 1, slices=min(4, points // _LANES))
        if columns > 4:
            return cls(4, 4, 4, 2)
        return cls(4, 4 if columns > 1 else 1, 4, 1)

    @property
    def threads(self) -> int:
        return self.slices * self.warp_rows * self.warp_columns * _LANES


@dataclass(frozen=True)
class Params:
    """The macros of ``conv_fft_product.cu``, described there."""

    POINTS: int
    ROWS: int
    COLUMNS: int
    WARP_ROWS: int
    WARP_COLUMNS: int
    SLICES: int
    SPATIAL: int


def product_step(
    correlation: SpectralCorrelation,
    tiling: Tiling,
    operands: tuple[WorkspacePointer, WorkspacePointer],
    sums: WorkspacePointer,
    arch: ArchSpec,
) -> tuple[KernelRef, Launch]:
    """The kernel and the launch that write the spectra of the target's windows.

    operands: the spectra of source and taps.
    """
    tile, target = _tile(correlation, tiling), dependent_target(arch)
    params = Params(
        POINTS=tiling.points,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        WARP_ROWS=tile.warp_rows,
        WARP_COLUMNS=tile.warp_columns,
        SLICES=tile.slices,
        SPATIAL=len(tiling.axes),
    )
    block = f"{tile.rows * tile.warp_rows}x{tile.columns * tile.warp_columns}"
    kernel = KernelRef(
        name=f"conv_fft_product_{params.POINTS}_{block}_{params.SPATIAL}d_{target_label(target)}",
        source="conv/fft/conv_fft_product.cu",
        target=target,
        parameters=macros(params),
    )
    pairs, columns = correlation.rows * tiling.tiles, correlation.columns
    row_parts, column_parts = _parts(correlation, tiling)
    windows = [axis.windows for axis in tiling.axes]
    distances = [prod(windows[axis + 1 :]) for axis in range(len(windows))]
    arguments = Struct(
        (
            *operands,
            sums,
            _steps(correlation.source_steps, tiling.windows),
            _steps(correlation.tap_steps, tiling.pieces),
            *dividers((tiling.tiles, *(axis.tiles for axis in tiling.axes), *(axis.pieces for axis in tiling.axes))),
            *i32((*distances, pairs, columns, correlation.depth, tiling.pieces)),
            *dividers((correlation.groups, row_parts * column_parts, column_parts)),
        )
    )
    return kernel, Launch(
        kernel=0,
        grid=(product_blocks(correlation, tiling), 1, 1),
        block=(tile.threads, 1, 1),
        arguments=(arguments,),
        work=cost.product_work(correlation, tiling),
        overlaps_previous=is_dependent(arch),
    )


def product_blocks(correlation: SpectralCorrelation, tiling: Tiling) -> int:
    """Blocks of the launch."""
    slices = tiling.points // (_LANES * _tile(correlation, tiling).slices)
    return slices * correlation.groups * prod(_parts(correlation, tiling))


def _parts(correlation: SpectralCorrelation, tiling: Tiling) -> tuple[int, int]:
    """Blocks of a group and a warp's values, along pairs and columns."""
    tile = _tile(correlation, tiling)
    row_parts = ceil_div(correlation.rows * tiling.tiles, tile.rows * tile.warp_rows)
    return row_parts, ceil_div(correlation.columns, tile.columns * tile.warp_columns)


def _tile(correlation: SpectralCorrelation, tiling: Tiling) -> ProductTile:
    return ProductTile.of(correlation.rows * tiling.tiles, correlation.columns, tiling.points)


def _steps(steps: Steps, windows: int) -> Struct:
    """The kernel's ``Steps``, in spectra.  windows: how many each line has."""
    return Struct(i64(windows * step for step in (steps.outer, steps.group, steps.depth)))
