"""The choice of a wgmma tile for a product, by the least modelled time, and the knobs over the menu."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Knob
from lowdnn.engines.gemm.instructions import WgmmaType
from lowdnn.engines.gemm.tiles import TRUE_FP32_NOTES
from lowdnn.engines.gemm.wgmma_machine import Machine
from lowdnn.engines.gemm.wgmma_menu import (
    MAX_STAGES,
    MENU,
    WARP_CONFIGS,
    menu_tiles,
    most_stages,
    tile_of,
    tile_problem,
    with_operand_buffers,
)
from lowdnn.engines.gemm.wgmma_product import WgmmaProduct
from lowdnn.engines.gemm.wgmma_tiles import Schedule, WgmmaTile
from lowdnn.engines.gemm.wgmma_times import Counts, Rates, busy_times, total_times
from lowdnn.engines.model.clock import Times, moving_s
from lowdnn.engines.model.memo import Memo
from lowdnn.engines.model.occupancy import no_tile_fits
from lowdnn.enums import DataType, KnobType, NumericalNote
from lowdnn.plan import Launch, MathUnit, Work
from lowdnn.status import BadParamError

#: Fewest columns of a tile.
SMALLEST_COLUMNS = 8
_COLUMNS = tuple(range(SMALLEST_COLUMNS, 257, SMALLEST_COLUMNS))
#: Most parts of k.
_MAX_SPLITS = 32
#: Parts of k that are tried for products in terms, however many tiles there are: their tiles are small and their k is
#: long, so that a last wave of few tiles takes a large share of the time.
_EVENING_SPLITS = tuple(range(2, 9))
#: Fewest blocks of k of such a part.
_EVENING_BLOCKS = 32
#: Most blocks of a cluster on every device.
_MAX_CLUSTER = 8
#: Choices that leave k whole.
WHOLE_K: Mapping[KnobType, int] = {KnobType.SPLIT_K_SLC: 1, KnobType.TILE_CGA_K: 1, KnobType.STREAM_K: 0}
#: Rows of clusters that are walked together.
_DEFAULT_GROUP = 8
#: Most columns of tiles for which one row of tiles is no more than the blocks in flight share.
_MAX_OWN_COLUMNS = 12
#: Tilings whose estimates differ by a smaller factor count as equally fast.
TIE_RATIO = 1.015
#: Stages of a deep ring. Where memory bounds a product of matrices, tilings with a deep ring are measured to be faster
#: than others of the same estimate; the fastest of them keeps k in one block.
_DEEP_RING = 8
#: The factor by which a tiling with a shallower ring must look better, if its parts of k take a second launch.
_SPLIT_MARGIN = 1.045
#: Blocks of k from which on copies matter more than transposed stores.
_DEEP_BLOCKS = 12
#: The model's error: transposed tiles for many rows and columns must look better by this factor.
TRANSPOSE_MARGIN = 1.04
#: That factor if the operand along many columns has misaligned rows: measured, it is better loaded in the whole boxes
#: of a tile's rows.
_MISALIGNED_TRANSPOSE_MARGIN = 0.97
#: Columns from which on the factor for misaligned rows holds.
_MANY_COLUMNS = 1024


@dataclass(frozen=True)
class WgmmaTiling:
    """A tile and the parts into which k is cut.  group: rows of clusters that are walked together.

    resident: see ``Schedule.of``.
    """

    tile: WgmmaTile
    splits: int
    group: int
    resident: int = 0

    def schedule(self, product: WgmmaProduct) -> Schedule:
        return self.schedule_of(product.m, product.n, product.k_blocks, product.batches)

    def schedule_of(self, m: int, n: int, k_blocks: int, batches: int) -> Schedule:
        """The tiles of a product, or of one class of its pixels."""
        return Schedule.of(self.tile, m, n, k_blocks, batches, self.splits, self.group, self.resident)


def best(product: WgmmaProduct, arch: ArchSpec) -> WgmmaTiling:
    """The tiling with the least modelled time, or one that the model cannot tell from it."""
    return _best(product, Machine.of(product.type, arch)).tiling


def least_seconds(product: WgmmaProduct, arch: ArchSpec) -> float:
    """The modelled time of one product with its ``best`` tiling."""
    return _best(product, Machine.of(product.type, arch)).seconds


def busy_seconds(product: WgmmaProduct, tiling: WgmmaTiling, arch: ArchSpec) -> float:
    """The modelled time of the product's own launch with this tiling, without its start; 0 with STREAM_K, which has no
    model.
    """
    if tiling.resident:
        return 0.0
    machine = Machine.of(product.type, arch)
    found = _best.known(product, machine)  # not worked out, where the tiling was chosen without it
    if found is not None and (tiling.tile, tiling.splits) == (found.tiling.tile, found.tiling.splits):
        return found.busy_s
    return _tiling_seconds(product, tiling, machine)


def busy_launch(product: WgmmaProduct, arch: ArchSpec) -> Launch:
    """A launch that takes no longer than the product's own one with its ``best`` tiling."""
    found = _best(product, Machine.of(product.type, arch))
    flops = 0 if product.classes else product.type.terms * found.tiling.schedule(product).flops
    work = Work(flops, unit=product.type.unit, busy_s=found.busy_s)
    return Launch(0, (arch.sm_count, 1, 1), (1, 1, 1), (), work=work, overlaps_previous=True)


def reduction_problem(product: WgmmaProduct, arch: ArchSpec) -> str:
    """Why the output of ``product`` is better reduced by a launch of its own: with fused reductions k is not split."""
    unfused = replace(product, allows_split=not product.classes)
    if least_seconds(unfused, arch) + moving_s(arch, product.output_bytes) < least_seconds(product, arch):
        return (
            f"operations: expected a product that is not faster in parts of k, got {best(unfused, arch).splits} parts"
        )
    return ""


def may_transpose(product: WgmmaProduct) -> bool:
    """Whether transposed tiles may be faster, for many rows and many columns: tiles have whole boxes of rows, and of a
    K-major operand as many columns as suit.
    """
    return product.is_b_mn_major and not product.is_a_mn_major and product.k_blocks >= _DEEP_BLOCKS


def transpose_margin(product: WgmmaProduct) -> float:
    """The factor by which transposed tiles for many rows and columns must look better."""
    return _MISALIGNED_TRANSPOSE_MARGIN if product.is_b_misaligned and product.n >= _MANY_COLUMNS else TRANSPOSE_MARGIN


def knobs(product: WgmmaProduct, chosen: WgmmaTiling) -> tuple[Knob, ...]:
    """Knobs for the tile, its ring, warps and cluster, the parts of k and the raster; defaults are from ``chosen``."""
    return _knobs(chosen, product.allows_clusters, product.allows_split)


@lru_cache(maxsize=1024)
def _knobs(chosen: WgmmaTiling, allows_clusters: bool, allows_split: bool) -> tuple[Knob, ...]:
    tile = chosen.tile
    rows = sorted({shape.m for shape in MENU})
    clusters = (1, 2, 4) if allows_clusters else (1,)
    splits = range(1, _MAX_SPLITS + 1) if allows_split else (1,)
    sharers, streams = (range(1, _MAX_CLUSTER + 1), (0, 1)) if allows_split else ((1,), (0,))
    config = WARP_CONFIGS.index((tile.teams, tile.warpgroups, tile.blocks_per_sm))
    return (
        Knob("tile_m", KnobType.TILE_M, tuple(rows), tile.m, "rows of the product that a block computes"),
        Knob("tile_n", KnobType.TILE_N, _COLUMNS, tile.n, "columns of the product that a block computes"),
        Knob("stages", KnobType.STAGES, tuple(range(2, MAX_STAGES + 1)), tile.stages, "stages of the ring"),
        Knob(
            "warps",
            KnobType.WARP_SPEC_CFG,
            tuple(range(len(WARP_CONFIGS))),
            config,
            "0: two warpgroups on one tile, 1: two take turns at tiles, 2: one in each of two blocks, 3: three on one",
        ),
        Knob("cluster_m", KnobType.TILE_CGA_M, clusters, tile.cluster_m, "blocks of a cluster along m"),
        Knob("cluster_n", KnobType.TILE_CGA_N, clusters, tile.cluster_n, "blocks of a cluster along n"),
        Knob(
            "split_k",
            KnobType.SPLIT_K_SLC,
            tuple(splits),
            chosen.splits,
            "parts of k, summed in a second launch",
        ),
        Knob(
            "cluster_k",
            KnobType.TILE_CGA_K,
            tuple(sharers),
            tile.cluster_k,
            "blocks of a cluster that share a part of k and sum their parts through shared memory",
        ),
        Knob(
            "stream_k",
            KnobType.STREAM_K,
            streams,
            int(chosen.resident > 0),
            "1: they share only the last tiles, of which there is not one for every block",
        ),
        Knob("raster", KnobType.SWIZZLE, (1, 2, 4, 8, 16, 32), chosen.group, "rows of tiles walked together"),
    )


def promotion_knobs(kind: WgmmaType, compute_type: DataType) -> tuple[Knob, ...]:
    """REDUCTION_MODE, if ``kind`` keeps fewer bits of a sum than fp32; FAST_FLOAT_FOR_FP8 does without by default."""
    if not kind.is_fp8:
        return ()
    help_text = "1: the sums of stages are added up in full fp32"
    return (Knob("promotion", KnobType.REDUCTION_MODE, (0, 1), int(is_promoted(kind, compute_type)), help_text),)


def is_promoted(kind: WgmmaType, compute_type: DataType) -> bool:
    """Whether sums are to be more precise than those of the tensor cores."""
    return kind.is_split or (kind.is_fp8 and compute_type is not DataType.FAST_FLOAT_FOR_FP8)


def chosen_promotion(kind: WgmmaType, chosen: Mapping[KnobType, int]) -> bool:
    """Whether resolved knobs promote sums."""
    return kind.is_split or bool(chosen.get(KnobType.REDUCTION_MODE, 0))


def sum_notes(kind: WgmmaType, chosen: Mapping[KnobType, int]) -> tuple[NumericalNote, ...]:
    """Numerical notes of a plan with resolved knobs."""
    if kind.is_split:
        return TRUE_FP32_NOTES
    is_reduced = chosen.get(KnobType.REDUCTION_MODE) == 0
    return (
        NumericalNote.TENSOR_CORE,
        *((NumericalNote.TF32_INPUTS,) if kind.unit is MathUnit.WGMMA_TF32 else ()),
        *((NumericalNote.REDUCED_PRECISION_REDUCTION,) if is_reduced else ()),
    )


def tiling_of(engine: str, product: WgmmaProduct, arch: ArchSpec, chosen: Mapping[KnobType, int]) -> WgmmaTiling:
    """The tiling of resolved knobs.

    Raises BadParamError for a tile that the warps or operands cannot be cut into or that exceeds shared memory.
    """
    tile = tile_of(
        product,
        chosen[KnobType.TILE_M],
        chosen[KnobType.TILE_N],
        chosen[KnobType.STAGES],
        WARP_CONFIGS[chosen[KnobType.WARP_SPEC_CFG]],
        (chosen[KnobType.TILE_CGA_M], chosen[KnobType.TILE_CGA_N]),
    )
    tile = replace(tile, cluster_k=chosen[KnobType.TILE_CGA_K])
    machine = Machine.of(product.type, arch)
    if product.has_operand:
        tile = with_operand_buffers(tile, machine)
    if not product.sums_columns and tile.stages > most_stages(tile, machine):
        tile = replace(tile, staging_buffers=1)
    resident = machine.clusters(tile) if chosen[KnobType.STREAM_K] else 0
    tiling = WgmmaTiling(tile, chosen[KnobType.SPLIT_K_SLC], chosen[KnobType.SWIZZLE], resident)
    problem = tile_problem(product, tile, machine) or tiling.schedule(product).sharing_problem()
    if resident and tile.cluster_k == 1:
        problem = "TILE_CGA_K above 1 with STREAM_K"
    if problem:
        raise BadParamError.at(f"{engine}.knob_choices", expected=problem, got=tile.label)
    return tiling


#: Fields of a product that depend on its extents.
_EXTENTS = ("batches", "m", "n", "k_blocks", "a_bytes", "b_bytes", "output_bytes", "classes")
#: The other fields, a product's traits.
_NAMES = tuple(field.name for field in fields(WgmmaProduct) if field.name not in _EXTENTS)
#: The values of a product's traits.
_TRAITS: Callable[[WgmmaProduct], tuple[Any, ...]] = attrgetter(*_NAMES)


class _Best(NamedTuple):
    """A tiling, the modelled seconds of all its launches, and its ``busy_seconds``."""

    seconds: float
    tiling: WgmmaTiling
    busy_s: float


@partial(Memo, most=4096)
def _best(product: WgmmaProduct, machine: Machine) -> _Best:
    rates = _menu_rates(_TRAITS(product), product.resident_blocks, bool(product.classes), machine)
    splits = _splittings(product, rates)
    seconds, busy_s = total_times(product, rates, splits, machine)
    waits = _waits_for_memory(product, machine)
    tie_ratio = TIE_RATIO if waits else 1
    at, row = _first(seconds.T, rates, tie_ratio)
    if waits and splits[row, at] > 1 and rates.stages[at] < _DEEP_RING:
        whole = np.where(splits == 1, seconds, np.inf)
        if whole.min() <= _SPLIT_MARGIN * seconds[row, at]:
            at, row = _first(whole.T, rates, tie_ratio)
    tile = rates.tiles[at]
    tiling = WgmmaTiling(tile, int(splits[row, at]), _group(product, tile, machine))
    return _Best(float(seconds[row, at]), tiling, float(busy_s[row, at]))


def _waits_for_memory(product: WgmmaProduct, machine: Machine) -> bool:
    """Whether the bytes of a product of matrices take longer than its arithmetic."""
    k = product.k_blocks * product.type.stage_k
    arithmetic_s = 2 * product.batches * product.m * product.n * k / (machine.flops * machine.sm_count)
    has_pixels = product.is_a_pixels or product.is_b_pixels
    return not has_pixels and product.moved_bytes / machine.arch.copy_bytes_per_s > arithmetic_s


def _first(seconds: Times, rates: Rates, tie_ratio: float) -> tuple[int, int]:
    """Index of the tile and its splitting: among the least times, first a deep ring, then a k that no blocks share.

    Among equal times the one that copies least is taken.
    """
    fastest = zip(*np.nonzero(seconds <= tie_ratio * seconds.min()), strict=True)

    def order(found: tuple[np.intp, np.intp]) -> tuple[bool, int, float, float]:
        at, row = found
        return rates.stages[at] < _DEEP_RING, rates.parts[at], seconds[at, row], rates.copy_s[1][at]

    at, row = min(fastest, key=order)
    return int(at), int(row)


@lru_cache(maxsize=1024)
def _tiling_seconds(product: WgmmaProduct, tiling: WgmmaTiling, machine: Machine) -> float:
    traits = _traits(_TRAITS(product), product.resident_blocks, bool(product.classes))
    rates = _tile_rates(traits, tiling.tile, machine)
    return float(np.max(busy_times(product, rates, np.array([[tiling.splits]]), machine)))


@lru_cache(maxsize=1024)
def _tile_rates(traits: WgmmaProduct, tile: WgmmaTile, machine: Machine) -> Rates:
    return Rates.of(traits, (tile,), machine)


def _traits(values: tuple[Any, ...], resident_blocks: int, has_classes: bool) -> WgmmaProduct:
    """A product without extents, except that a resident operand has all k blocks.  values: values by ``_TRAITS``."""
    classes = ((1, 1, 1),) if has_classes else ()
    named = dict(zip(_NAMES, values, strict=True))
    return WgmmaProduct(
        **named,
        batches=1,
        m=1,
        n=1,
        k_blocks=resident_blocks or 1,
        a_bytes=0,
        b_bytes=0,
        output_bytes=0,
        classes=classes,
    )


@lru_cache(maxsize=1024)
def _menu_rates(values: tuple[Any, ...], resident_blocks: int, has_classes: bool, machine: Machine) -> Rates:
    traits = _traits(values, resident_blocks, has_classes)
    tiles = menu_tiles(traits, machine)
    if not tiles:
        raise no_tile_fits(machine.arch)
    return Rates.of(traits, tiles, machine)


def _splittings(product: WgmmaProduct, rates: Rates) -> Counts:
    """Splits of each tile, in rows: whole, and as many parts as fill the device about once or twice (else whole); for
    products in terms also ``_EVENING_SPLITS``.

    Blocks that share operands or k are not split: measured, waiting for each other costs more than a split saves.
    """
    most = min(product.k_blocks // 4, _MAX_SPLITS) if product.allows_split else 0
    whole = np.ones_like(rates.rows)
    if most < 2:
        return whole[np.newaxis]
    items = rates.items(product.m, product.n, product.batches)
    free = rates.clusters // items
    evening = [n for n in _EVENING_SPLITS if product.type.is_split and n * _EVENING_BLOCKS <= product.k_blocks]
    if not (free.any() or evening):
        return whole[np.newaxis]
    splits = np.minimum(np.stack((whole, free, 2 * free + 1)), most)
    filling = (splits >= 2) & (items * splits <= 2 * rates.clusters)
    found = [np.where(filling, splits, 1), *(whole[np.newaxis] * n for n in evening)]
    return np.where(rates.cluster == 1, np.concatenate(found), 1)


def _group(product: WgmmaProduct, tile: WgmmaTile, machine: Machine) -> int:
    """Rows of clusters that are walked together: one if every cluster then has the same columns in all its tiles."""
    if not product.sums_columns:
        return _DEFAULT_GROUP
    columns = WgmmaTiling(tile, 1, 1).schedule(product).columns
    stays = machine.clusters(tile) % columns == 0 and columns <= _MAX_OWN_COLUMNS
    return 1 if stays else _DEFAULT_GROUP
