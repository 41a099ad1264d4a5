"""The tile of a filter gradient with the least modelled time, and the knobs that choose among tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Knob
from lowdnn.engines.conv.wgmma.wgrad_parts import bound_seconds, splittings, spread
from lowdnn.engines.conv.wgmma.wgrad_product import WgradProduct
from lowdnn.engines.conv.wgmma.wgrad_tiles import (
    WgradTiling,
    added_bytes,
    barrier_bytes,
    copied_bytes,
    most_accumulators,
)
from lowdnn.engines.conv.wgmma.wgrad_times import Extents, StageTraits, TimedTile
from lowdnn.engines.gemm.wgmma_menu import MAX_STAGES, WARP_CONFIGS
from lowdnn.engines.gemm.wgmma_tiles import MN_MAJOR_BOX, TileStore, WgmmaTile
from lowdnn.engines.model.occupancy import no_tile_fits, shared_room
from lowdnn.engines.model.search import first_of_least
from lowdnn.enums import KnobType
from lowdnn.status import BadParamError

#: Values of TILE_M.
_ROWS = (64, 128, 256)
#: Values of TILE_N.
_COLUMNS = (64, 128, 192, 256)
#: Values of SPLIT_K_SLC.
_SPLITS = range(1, 133)
#: Choices of the blocks of a cluster that share the k of a tile: each stores whole boxes of its columns.
_SHARERS = tuple(range(1, _COLUMNS[-1] // MN_MAJOR_BOX + 1))
#: Fewest stages of the ring.
_MIN_STAGES = 2

#: Tiles that are tried: (rows, columns, index of WARP_CONFIGS).
_MENU = (
    *((128, n, 0) for n in (64, 128, 192, 256)),
    *((256, n, 0) for n in (64, 128, 192)),
    *((64, n, 1) for n in (64, 128, 192, 256)),
)


def best(product: WgradProduct, arch: ArchSpec) -> WgradTiling:
    """The tiling with the least modelled time."""
    found = _fastest(product, arch)
    return WgradTiling(found.product, found.timed.tile, found.cut.splits)


def least_seconds(product: WgradProduct, arch: ArchSpec) -> float:
    """The modelled time of ``best``."""
    return _fastest(product, arch).cut.seconds


def busy_seconds(tiling: WgradTiling, arch: ArchSpec) -> float:
    """The modelled time of the product's launch, without its start; 0 if clusters share k, which has no such model."""
    if tiling.tile.cluster_k > 1:
        return 0.0
    splits = tiling.tap_splits or (tiling.schedule.splits,)
    return _timed(tiling.product, tiling.tile, arch).busy_seconds(Extents.of(tiling.product), splits)


def knobs(product: WgradProduct, chosen: WgradTiling) -> tuple[Knob, ...]:
    """The knobs: tile, stages, warps, cluster, windows, parts of k. Their defaults are the values of ``chosen``."""
    tile = chosen.tile
    config = WARP_CONFIGS.index((tile.teams, tile.warpgroups, tile.blocks_per_sm))
    windows = (0, 1) if product.with_windows else (0,)
    edges = (0, 1) if product.with_valid_only else (0,)
    parts = max(chosen.splits)
    splits = tuple(sorted({*_SPLITS, parts}))
    stages = tuple(range(_MIN_STAGES, MAX_STAGES + 1))
    return (
        Knob("tile_m", KnobType.TILE_M, _ROWS, tile.m, "filters that a block computes"),
        Knob("tile_n", KnobType.TILE_N, _COLUMNS, tile.n, "columns (channels of taps) that a block computes"),
        Knob("stages", KnobType.STAGES, stages, tile.stages, "stages of the ring"),
        Knob(
            "warps",
            KnobType.WARP_SPEC_CFG,
            (0, 1, 2),
            config,
            "0: two warpgroups on one tile, 1: two take turns at tiles, 2: one in each of two blocks",
        ),
        Knob("cluster_m", KnobType.TILE_CGA_M, (1, 2, 4), tile.cluster_m, "blocks of a cluster along the filters"),
        Knob("cluster_n", KnobType.TILE_CGA_N, (1, 2, 4), tile.cluster_n, "blocks of a cluster along the columns"),
        Knob(
            "windows",
            KnobType.SPECFILT,
            windows,
            int(chosen.product.tap_run > 1),
            "1: the taps of the last axis are read from one window of pixels",
        ),
        Knob(
            "edge",
            KnobType.EDGE,
            edges,
            int(chosen.product.is_valid_only),
            "1: each tap walks over the outputs alone whose pixels are none of the padding; not with windows",
        ),
        Knob(
            "split_k",
            KnobType.SPLIT_K_SLC,
            splits,
            parts,
            "parts of the pixels, summed in a second launch; of those of the longest tap where taps have their own",
        ),
        Knob(
            "cluster_k",
            KnobType.TILE_CGA_K,
            _SHARERS,
            tile.cluster_k,
            "blocks of a cluster that share a part of the pixels and sum their parts through shared memory",
        ),
    )


def tiling_of(engine: str, product: WgradProduct, arch: ArchSpec, chosen: Mapping[KnobType, int]) -> WgradTiling:
    """The tiling of resolved knobs; raises BadParamError for a tile that does not exist or exceeds shared memory."""
    teams, warpgroups, blocks_per_sm = WARP_CONFIGS[chosen[KnobType.WARP_SPEC_CFG]]
    tile = WgmmaTile(
        chosen[KnobType.TILE_M],
        chosen[KnobType.TILE_N],
        chosen[KnobType.STAGES],
        teams,
        warpgroups,
        chosen[KnobType.TILE_CGA_M],
        chosen[KnobType.TILE_CGA_N],
        blocks_per_sm,
        product.instruction.element_bytes,
        cluster_k=chosen[KnobType.TILE_CGA_K],
        is_promoted=product.instruction.is_split,
        b_parts=1 + product.instruction.is_split,
    )
    if chosen[KnobType.SPECFILT] and chosen[KnobType.EDGE]:
        raise BadParamError.at(f"{engine}.SPECFILT", expected="0 with EDGE", got=1)
    with_windows = product.with_windows if chosen[KnobType.SPECFILT] else None
    valid_only = product.with_valid_only if chosen[KnobType.EDGE] else None
    cut = with_windows or valid_only or product
    tiling = WgradTiling(cut, tile, _splits(cut, tile, chosen[KnobType.SPLIT_K_SLC], arch))
    if problem := tiling.problem(arch):
        raise BadParamError.at(f"{engine}.knob_choices", expected=problem, got=tile.label)
    return tiling


@lru_cache(maxsize=256)
def menu(traits: StageTraits, arch: ArchSpec) -> tuple[TimedTile, ...]:
    """Every tile of the menu that suits the runs of taps and windows of pixels, with as many stages as fit."""
    found = []
    for m, n, config in _MENU:
        if traits.tap_run > 1 and n != traits.tap_run * MN_MAJOR_BOX:
            continue
        kind = traits.instruction
        tile = WgmmaTile(m, n, 0, *WARP_CONFIGS[config], 1, 1, kind.element_bytes)
        tile = replace(tile, is_promoted=kind.is_split, b_parts=1 + kind.is_split)
        if tile.accumulators > most_accumulators(tile, traits.element_clocks > 0):
            continue
        stage_bytes = copied_bytes(tile, traits.tap_run, traits.window) + added_bytes(tile, traits.tap_run)
        room = shared_room(arch, tile.blocks_per_sm) - tile.staging_bytes(TileStore.FUNCTOR)
        stages = min(room // (stage_bytes + barrier_bytes(tile)), MAX_STAGES)
        if stages >= _MIN_STAGES:
            found.append(TimedTile.of(replace(tile, stages=stages), traits, arch))
    return tuple(found)


def _splits(product: WgradProduct, tile: WgmmaTile, most: int, arch: ArchSpec) -> tuple[int, ...]:
    """Parts of all taps, or of each tap, of which the longest has ``most``."""
    if not product.is_valid_only:
        return (most,)
    return spread(_timed(product, tile, arch), Extents.of(product), most)


def _timed(product: WgradProduct, tile: WgmmaTile, arch: ArchSpec) -> TimedTile:
    return TimedTile.of(tile, StageTraits.of(product, tile.cluster_m), arch)


class _Cut(NamedTuple):
    """A choice of the parts of k: its modelled seconds, and its cost, which is these seconds times a margin."""

    cost: float
    seconds: float
    splits: tuple[int, ...]


@dataclass(frozen=True)
class _Candidate:
    """A tile for a product, possibly with windows or with walks over valid pixels."""

    product: WgradProduct
    extents: Extents
    timed: TimedTile

    @cached_property
    def cut(self) -> _Cut:
        """The parts of k with the least cost, the first of them on ties."""
        return min(self._cuts(), key=lambda cut: cut.cost)

    def _cuts(self) -> Iterator[_Cut]:
        for splits, margin in splittings(self.timed, self.extents):
            seconds = self.timed.seconds(self.extents, splits)
            yield _Cut(seconds * margin, seconds, splits)


def _fastest(product: WgradProduct, arch: ArchSpec) -> _Candidate:
    found = first_of_least(_bounded(product, arch), lambda candidate: candidate.cut.cost)
    if found is None:
        raise no_tile_fits(arch)
    return found


def _bounded(product: WgradProduct, arch: ArchSpec) -> Iterator[tuple[float, _Candidate]]:
    """Candidates with a lower bound of their time."""
    for cut in filter(None, (product, product.with_windows, product.with_valid_only)):
        extents = Extents.of(cut)
        for timed in menu(StageTraits.of(cut), arch):
            yield bound_seconds(timed, extents), _Candidate(cut, extents, timed)
