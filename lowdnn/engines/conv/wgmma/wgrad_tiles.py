"""Which tile suits a filter gradient: tiles, a model of their time, and the knobs that go through them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Knob
from lowdnn.engines.conv.wgmma.wgrad_product import WgradProduct
from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES, WgmmaType
from lowdnn.engines.gemm.wgmma_menu import WARP_CONFIGS, fits_instruction
from lowdnn.engines.gemm.wgmma_tile_costs import conversion_clocks
from lowdnn.engines.gemm.wgmma_tiles import MN_MAJOR_BOX, ClassSchedule, Schedule, TileStore, WgmmaTile
from lowdnn.engines.launch import i32
from lowdnn.engines.model.occupancy import shared_room
from lowdnn.enums import KnobType
from lowdnn.plan import Struct
from lowdnn.status import BadParamError

_ROWS = (64, 128, 256)
_COLUMNS = (64, 128, 192, 256)
_SPLITS = range(1, 133)
#: Blocks of a cluster that share the k of a tile: each stores whole boxes of its columns.
_SHARERS = tuple(range(1, _COLUMNS[-1] // MN_MAJOR_BOX + 1))
_GROUP = 8
_MIN_STAGES, _MAX_STAGES = 2, 12
_STAGE_BARRIER_BYTES = 16
#: Accumulators of a thread beyond which ptxas has no registers left for addresses.
_MAX_ACCUMULATORS = 192
#: Where x is converted on the way.
_MAX_CONVERTED_ACCUMULATORS = 128
#: Of the registers at launch, where dy goes through some: those of each 64 rows, and those beside them.
_ROW_REGISTERS, _OTHER_REGISTERS = 32, 8
_ACCUMULATOR_BYTES = 4
#: Of types that the tensor cores take along k only.
_TRANSPOSED_ELEMENT_BYTES = 4

#: (rows, columns, index of WARP_CONFIGS) of tiles that are worth trying.
_MENU = (
    *((128, n, 0) for n in (64, 128, 192, 256)),
    *((256, n, 0) for n in (64, 128, 192)),
    *((64, n, 1) for n in (64, 128, 192, 256)),
)

#: Measured on an H200. Clock of blocks that do not wait for the tensor cores: those draw the power that lowers it.
_LIGHT_CLOCK_HZ = 1.7e9
_SHARED_BYTES_PER_CLOCK = 128
#: From L2 into the shared memory of all multiprocessors.
_L2_BYTES_PER_S = 10.4e12
#: From a copy's start to its bytes in shared memory.
_COPY_LATENCY_S = 0.5e-6
#: Of transposing a stage, what the multiplications of the one before do not hide.
_TRANSPOSE_S = 0.09e-6
#: From a kernel's start to its first multiplication; from its last one to the end.
_START_S = 1.1e-6
#: Of reading from memory and of what goes on meanwhile, the share of the shorter one that the longer one does not hide.
_OVERLAP_LOSS = 0.085
#: Of the launch that adds up the slices, and of the slices on their way there and back.
_REDUCE_S = 3.6e-6
_SLICE_BYTES_PER_S = 2.0e12

#: Parts of a tap, where each has its own; those of the longest one that are tried.
_TAP_SPLITS = (1, 2, 3, 4, 6, 8)
_LONGEST_TAP_SPLITS = (1, 2, 4, 8)
#: Parts of k fill the device so many times at most; the model's error: beyond a few times they must look better by that
#: much.
_MOST_ROUNDS, _FEW_ROUNDS, _ROUNDS_MARGIN = 4, 2, 1.1


@dataclass(frozen=True)
class WgradTiling:
    """A tile, the product that it cuts (with windows or without), and the parts into which k is cut.

    splits: of all taps, or of each tap where they go over valid pixels alone.
    """

    product: WgradProduct
    tile: WgmmaTile
    splits: tuple[int, ...]

    @cached_property
    def schedule(self) -> Schedule | ClassSchedule:
        """Taps with valid pixels alone have one each, that of the longest parts first."""
        return ClassSchedule(tuple(self._taps[tap] for tap in self._tap_order)) if self._taps else self._whole

    def schedule_argument(self, arch: ArchSpec) -> Struct:
        """``Schedule`` of the kernel."""
        if not isinstance(self.schedule, ClassSchedule):
            return self.schedule.argument
        first_columns = (tap * self.tap_chunks * MN_MAJOR_BOX for tap in self._tap_order)
        return Struct((self.schedule.argument(arch.sm_count), *i32(first_columns)))

    @property
    def tap_chunks(self) -> int:
        """Blocks of a tap's channels; whole tiles of them where each tap has a schedule."""
        if not self._taps:
            return self.product.chunks
        return self._taps[0].columns * self.tile.n * self.tile.cluster_n // MN_MAJOR_BOX

    @property
    def tap_splits(self) -> tuple[int, ...]:
        """Slices of each tap, where not all have as many."""
        return tuple(tap.splits for tap in self._taps)

    @cached_property
    def _whole(self) -> Schedule:
        product, (splits,) = self.product, self.splits
        extents = (max(product.filters, 1), max(product.columns, 1), max(product.k_blocks, 1))
        return Schedule.of(self.tile, *extents, product.groups, splits, _GROUP)

    @cached_property
    def _taps(self) -> tuple[Schedule, ...]:
        """In the filter's order."""
        product = self.product
        if not product.is_valid_only:
            return ()
        extents = (product.filters, product.chunks * MN_MAJOR_BOX)
        return tuple(
            Schedule.of(self.tile, *extents, k_blocks, product.groups, splits, _GROUP)
            for k_blocks, splits in zip(product.tap_blocks, self.splits, strict=True)
        )

    @property
    def _tap_order(self) -> list[int]:
        return sorted(range(len(self._taps)), key=lambda tap: -self._taps[tap].split_blocks)

    @property
    def copied_bytes(self) -> int:
        """Of a stage."""
        return _copied_bytes(self.tile, self.product.tap_run, self.product.window(self.tile.cluster_m))

    @property
    def stage_bytes(self) -> int:
        return self.copied_bytes + _added_bytes(self.tile, self.product.tap_run)

    def shared_bytes(self, store: TileStore) -> int:
        """The ring, a cluster's sum, the staging areas of a store that needs them, the barriers."""
        ring = self.tile.stages * (self.stage_bytes + _STAGE_BARRIER_BYTES)
        return ring + self.tile.sum_bytes + self.tile.staging_bytes(store)

    def problem(self, arch: ArchSpec) -> str:
        """Why the tile does not exist, as the rule that it breaks, or an empty string."""
        tile, run = self.tile, self.product.tap_run
        most = _most_accumulators(tile, self.product.converted is not None)
        if tile.m % (64 * tile.warpgroups) or tile.m * tile.n // (tile.warpgroups * 128) > most:
            return f"whole parts of 64 rows for each warpgroup, at most {most} accumulators of a thread"
        if not fits_instruction(tile):
            return f"fewer columns for the {tile.launched_registers} registers of a thread"
        if self.product.converted is not None and tile.cluster > 1:
            return "clusters of one block where x is converted"
        if run > 1 and tile.n != run * MN_MAJOR_BOX:
            return f"TILE_N of {run * MN_MAJOR_BOX}, {run} taps of one window"
        budget = shared_room(arch, tile.blocks_per_sm)
        if self.shared_bytes(TileStore.FUNCTOR) > budget:
            return f"at most {budget} bytes of shared memory (take fewer stages or a smaller tile)"
        return self.schedule.sharing_problem(MN_MAJOR_BOX)


def best(product: WgradProduct, arch: ArchSpec) -> WgradTiling:
    """The tiling with the least modelled time."""
    return _timed_best(product, arch)[1]


def least_seconds(product: WgradProduct, arch: ArchSpec) -> float:
    """The modelled time of ``best``."""
    return _timed_best(product, arch)[0]


def busy_seconds(tiling: WgradTiling, arch: ArchSpec) -> float:
    """The modelled time of the launch of the product, without its start; not where clusters share k (0)."""
    product = tiling.product
    if tiling.tile.cluster_k > 1:
        return 0.0
    fitted = _fitted(product, tiling.tile, arch)
    splits = tiling.tap_splits or (tiling.schedule.splits,)
    return _busy_seconds(_Extents.of(product), fitted, splits, _Rates.of(product, arch))


def _timed_best(product: WgradProduct, arch: ArchSpec) -> tuple[float, WgradTiling]:
    rates, element_clocks = _Rates.of(product, arch), _conversion_clocks(product)
    tiles: list[tuple[float, int, WgradProduct, _Extents, _Fitted]] = []
    for cut in filter(None, (product, product.with_windows, product.with_valid_only)):
        extents = _Extents.of(cut)
        menu = _menu(cut.tap_run, cut.window(1), cut.pixel_clocks, element_clocks, product.instruction, arch)
        tiles += [
            (_bound_seconds(extents, fitted, rates), number, cut, extents, fitted)
            for number, fitted in enumerate(menu, len(tiles))
        ]
    found: list[tuple[tuple[float, int], float, WgradTiling]] = []  # each better than the one before; first tiles win
    for bound, number, cut, extents, fitted in sorted(tiles, key=lambda tile: tile[0]):
        if found and bound > found[-1][0][0]:
            break
        for splits, margin in _splittings(extents, fitted, rates):
            seconds = _seconds(extents, fitted, splits, rates)
            cost = seconds * margin, number
            if not found or cost < found[-1][0]:
                found.append((cost, seconds, WgradTiling(cut, fitted.tile, splits)))
    _, seconds, tiling = found[-1]
    return seconds, tiling


def _fitted(product: WgradProduct, tile: WgmmaTile, arch: ArchSpec) -> _Fitted:
    copied_bytes = _copied_bytes(tile, product.tap_run, product.window(tile.cluster_m))
    stage = copied_bytes, product.tap_run, product.pixel_clocks, _conversion_clocks(product)
    return _Fitted.of(tile, *stage, product.instruction, arch)


def _conversion_clocks(product: WgradProduct) -> float:
    """Of an element of x."""
    return conversion_clocks(product.converted.functions) if product.converted else 0.0


def _most_accumulators(tile: WgmmaTile, is_converted: bool) -> int:
    if tile.element_bytes == _TRANSPOSED_ELEMENT_BYTES:
        return tile.launched_registers - _OTHER_REGISTERS - tile.m // (64 * tile.warpgroups) * _ROW_REGISTERS
    return _MAX_CONVERTED_ACCUMULATORS if is_converted else _MAX_ACCUMULATORS


def knobs(product: WgradProduct, chosen: WgradTiling) -> tuple[Knob, ...]:
    """The tile, its ring, warps and cluster, windows, the parts of k; defaults are those of ``chosen``."""
    tile = chosen.tile
    config = WARP_CONFIGS.index((tile.teams, tile.warpgroups, tile.blocks_per_sm))
    windows = (0, 1) if product.with_windows else (0,)
    edges = (0, 1) if product.with_valid_only else (0,)
    parts = max(chosen.splits)
    splits = tuple(sorted({*_SPLITS, parts}))
    stages = tuple(range(_MIN_STAGES, _MAX_STAGES + 1))
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
            "blocks of a cluster that share a part of the pixels and sum what they have through their shared memory",
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


def _splits(product: WgradProduct, tile: WgmmaTile, most: int, arch: ArchSpec) -> tuple[int, ...]:
    """Parts of all taps, or of each tap, the longest one's being ``most``."""
    if not product.is_valid_only:
        return (most,)
    return _spread(_Extents.of(product), _fitted(product, tile, arch), most, _Rates.of(product, arch))


@dataclass(frozen=True)
class _Fitted:
    """A tile with as many stages as fit; of a stage copies, operations and seconds; how many clusters run at once."""

    tile: WgmmaTile
    copied_bytes: int
    stage_flops: int
    stage_s: float
    resident: int

    @classmethod
    def of(
        cls,
        tile: WgmmaTile,
        copied_bytes: int,
        tap_run: int,
        pixel_clocks: tuple[float, float],
        element_clocks: float,
        instruction: WgmmaType,
        arch: ArchSpec,
    ) -> _Fitted:
        dy_pixels, x_pixels = tile.m, copied_bytes // STAGE_ROW_BYTES - tile.m
        copy_s = (dy_pixels * pixel_clocks[0] + x_pixels * pixel_clocks[1]) / _LIGHT_CLOCK_HZ
        convert_s = x_pixels * MN_MAJOR_BOX * element_clocks / _LIGHT_CLOCK_HZ
        stage_s = max(copy_s, convert_s, _stage_seconds(tile, copied_bytes, tap_run, instruction, arch))
        stage_flops = 2 * tile.m * tile.n * tile.k
        return cls(tile, copied_bytes, stage_flops, stage_s, tile.resident_clusters(arch.sm_count))

    def sustained_s(self, rates: _Rates) -> float:
        """Of a stage at the clock that the device's power leaves while all are busy: as measured, it does not rise when
        a few have longer items than the others."""
        sms = self.resident * self.tile.cluster / self.tile.blocks_per_sm
        return max(self.stage_s, self.stage_flops * sms / rates.flops)

    def tiles(self, filters: int, columns: int) -> int:
        """Of a group, in clusters."""
        return -(-filters // (self.tile.m * self.tile.cluster_m)) * -(-columns // (self.tile.n * self.tile.cluster_n))


@lru_cache(maxsize=256)
def _menu(
    tap_run: int,
    window: int,
    pixel_clocks: tuple[float, float],
    element_clocks: float,
    instruction: WgmmaType,
    arch: ArchSpec,
) -> tuple[_Fitted, ...]:
    """Every tile of the menu that exists for runs of taps and windows of pixels.

    pixel_clocks: to copy one of dy and one of x.  element_clocks: to convert an element of x, or 0.
    """
    found = []
    for m, n, config in _MENU:
        if tap_run > 1 and n != tap_run * MN_MAJOR_BOX:
            continue
        tile = WgmmaTile(m, n, 0, *WARP_CONFIGS[config], 1, 1, instruction.element_bytes)
        if tile.accumulators > _most_accumulators(tile, element_clocks > 0):
            continue
        copied_bytes = _copied_bytes(tile, tap_run, window)
        stage_bytes = copied_bytes + _added_bytes(tile, tap_run)
        room = shared_room(arch, tile.blocks_per_sm) - tile.staging_bytes(TileStore.FUNCTOR)
        stages = min(room // (stage_bytes + _STAGE_BARRIER_BYTES), _MAX_STAGES)
        if stages >= _MIN_STAGES:
            tile = replace(tile, stages=stages)
            found.append(_Fitted.of(tile, copied_bytes, tap_run, pixel_clocks, element_clocks, instruction, arch))
    return tuple(found)


class _Extents(NamedTuple):
    """What the model sees of a product.

    columns: of all taps, or of one where each has k_blocks of its own.  sum_bytes: of one slice of those.
    """

    filters: int
    columns: int
    k_blocks: tuple[int, ...]
    groups: int
    read_bytes: int
    sum_bytes: int

    @classmethod
    def of(cls, product: WgradProduct) -> _Extents:
        k_blocks = product.tap_blocks if product.is_valid_only else (max(product.k_blocks, 1),)
        sum_bytes = product.operation.dw.element_count * _ACCUMULATOR_BYTES // len(k_blocks)
        extents = (max(product.filters, 1), max(product.columns // len(k_blocks), 1), k_blocks)
        return cls(*extents, product.groups, product.read_bytes, sum_bytes)


class _Rates(NamedTuple):
    """Of the device: of its tensor cores, and of its memory."""

    flops: float
    copy_bytes_per_s: float

    @classmethod
    def of(cls, product: WgradProduct, arch: ArchSpec) -> _Rates:
        return cls(arch.attained_rate(product.instruction.unit), arch.copy_bytes_per_s)


def _splittings(extents: _Extents, fitted: _Fitted, rates: _Rates) -> Iterator[tuple[tuple[int, ...], float]]:
    """Whole, and in as many parts as fill the device a few times; each with the margin by which it must be better."""
    if len(extents.k_blocks) > 1:
        longest = max(extents.k_blocks)
        counts = [most for most in _LONGEST_TAP_SPLITS if most <= max(longest // 4, 1)]
        yield from ((_spread(extents, fitted, most, rates), 1.0) for most in counts)
        return
    yield (1,), 1.0
    items = _clusters(extents, fitted)
    for rounds in range(1, _MOST_ROUNDS + 1):
        splits = min(rounds * fitted.resident // max(items, 1), extents.k_blocks[0] // 4)
        if splits > 1:
            yield (splits,), 1.0 if rounds <= _FEW_ROUNDS else _ROUNDS_MARGIN


def _spread(extents: _Extents, fitted: _Fitted, most: int, rates: _Rates) -> tuple[int, ...]:
    """Parts of each tap's k, ``most`` of those with the most k blocks: the device is busy for the shortest time with
    them and their slices, as far as a change of one number shows."""
    lengths = sorted(set(extents.k_blocks), reverse=True)
    tap_items = _clusters(extents, fitted)
    items = [tap_items * extents.k_blocks.count(k) for k in lengths]
    item_s = fitted.tile.m * fitted.tile.n * _ACCUMULATOR_BYTES / _SLICE_BYTES_PER_S
    stage_s = fitted.sustained_s(rates)

    def seconds(splits: Sequence[int]) -> float:
        parts = [(-(-k // split), count * split) for k, count, split in zip(lengths, items, splits, strict=True)]
        slices_s = sum(count for _, count in parts) * item_s if max(splits) > 1 else 0.0
        return _busiest(parts, fitted.resident) * stage_s + slices_s

    found = _descended([most, *[1] * (len(lengths) - 1)], [split for split in _TAP_SPLITS if split <= most], seconds)
    return tuple(min(found[lengths.index(k)], k) for k in extents.k_blocks)


def _descended(start: Sequence[int], values: Sequence[int], cost: Callable[[Sequence[int]], float]) -> list[int]:
    """``start`` with each number but the first, in turn, as the one of ``values`` that costs least, until none does."""
    found, least = list(start), cost(start)
    while True:
        before = least
        for place in range(1, len(found)):
            others = ([*found[:place], value, *found[place + 1 :]] for value in values if value != found[place])
            least, found = min([(least, found), *((cost(other), other) for other in others)])
        if least == before:
            return found


def _busiest(parts: Sequence[tuple[int, int]], resident: int) -> int:
    """k blocks of the busiest of ``resident`` clusters, which take turns at (k blocks, how many) items, longest first,
    to and fro (``ClassSchedule``)."""
    if len(parts) == 1:
        ((length, count),) = parts
        return length * -(-count // resident)
    ordered = sorted(parts, reverse=True)
    lengths, ends = [*(length for length, _ in ordered), 0], [*accumulate(count for _, count in ordered)]
    last = (ends[-1] - 1) // resident
    # One of those between whom an item gets shorter, in either direction, is the busiest.
    bounds = {0, *(end % resident for end in ends)}
    places = {place % resident for end in bounds for place in (end, end - 1, resident - end, resident - 1 - end)}
    alike, others = 0, []
    for turn in range(last + 1):
        first, end = (lengths[bisect_right(ends, item)] for item in (turn * resident, (turn + 1) * resident - 1))
        if first == end:
            alike += first
        else:
            others.append((turn * resident, (last - turn) % 2))

    def busy(place: int) -> int:
        items = (first + (resident - 1 - place if is_back else place) for first, is_back in others)
        return sum(lengths[bisect_right(ends, item)] for item in items)

    return alike + max(map(busy, places))


def _seconds(extents: _Extents, fitted: _Fitted, splits: Sequence[int], rates: _Rates) -> float:
    """From the start to the end of all launches."""
    lengths = [-(-k // min(split, k)) for k, split in zip(extents.k_blocks, splits, strict=True)]
    splits = [-(-k // length) for k, length in zip(extents.k_blocks, lengths, strict=True)]
    seconds = _START_S + _busy_seconds(extents, fitted, splits, rates)
    return seconds + (_slices_seconds(extents, sum(splits)) if max(splits) > 1 else 0.0)


def _bound_seconds(extents: _Extents, fitted: _Fitted, rates: _Rates) -> float:
    """What no parts of k take less than: all clusters busy to the end, none with less than a part of the longest k."""
    even = _clusters(extents, fitted) * sum(extents.k_blocks) / fitted.resident
    longest = max(extents.k_blocks)
    part = longest / _LONGEST_TAP_SPLITS[-1] if len(extents.k_blocks) > 1 else 0.0
    whole_s = _beside_copies(extents, fitted, rates, max(even, longest))
    parts_s = _beside_copies(extents, fitted, rates, max(even, part)) + _slices_seconds(extents, len(extents.k_blocks))
    return _START_S + min(whole_s, parts_s)


def _slices_seconds(extents: _Extents, slices: int) -> float:
    """Of the sum of slices, of columns as ``extents`` has them."""
    return _REDUCE_S + slices * extents.sum_bytes / _SLICE_BYTES_PER_S


def _busy_seconds(extents: _Extents, fitted: _Fitted, splits: Sequence[int], rates: _Rates) -> float:
    """Rounds of tiles on each multiprocessor, but no less than the device's power, L2 and memory allow.

    splits: none of them empty.
    """
    clusters = _clusters(extents, fitted)
    parts = [(-(-k // split), clusters * split) for k, split in zip(extents.k_blocks, splits, strict=True)]
    return _beside_copies(extents, fitted, rates, _busiest(parts, fitted.resident))


def _clusters(extents: _Extents, fitted: _Fitted) -> int:
    """Tiles of clusters, of each part of k."""
    return fitted.tiles(extents.filters, extents.columns) * extents.groups


def _beside_copies(extents: _Extents, fitted: _Fitted, rates: _Rates, busiest_stages: float) -> float:
    """The time of the busiest cluster's stages, and of what all of them share."""
    tile = fitted.tile
    stage_s = fitted.stage_s if len(extents.k_blocks) == 1 else fitted.sustained_s(rates)
    stages = _clusters(extents, fitted) * sum(extents.k_blocks) * tile.cluster
    power = stages * fitted.stage_flops / rates.flops
    loaded = stages * fitted.copied_bytes
    busy = max(busiest_stages * tile.blocks_per_sm * stage_s, power, loaded / _L2_BYTES_PER_S)
    copied = extents.read_bytes / rates.copy_bytes_per_s
    return max(busy, copied) + _OVERLAP_LOSS * min(busy, copied)


def _stage_seconds(tile: WgmmaTile, copied_bytes: int, tap_run: int, instruction: WgmmaType, arch: ArchSpec) -> float:
    """Of one stage, on a multiprocessor: what its multiplications and its shared-memory traffic take at least."""
    multiply = 2 * tile.m * tile.n * tile.k / (arch.flops_per_clock[instruction.unit] * _LIGHT_CLOCK_HZ)
    # Each 64 rows read all of x's columns again; the copies write both operands; transposing reads and writes.
    read = tile.m // 64 * (64 + tile.n) * STAGE_ROW_BYTES
    shared = (read + copied_bytes + 2 * _transposed_bytes(tile, tap_run)) / (_SHARED_BYTES_PER_CLOCK * _LIGHT_CLOCK_HZ)
    latency = _COPY_LATENCY_S / (tile.stages * tile.blocks_per_sm)
    return max(multiply, shared, latency) + (0.0 if instruction.has_mn_major else _TRANSPOSE_S)


def _copied_bytes(tile: WgmmaTile, tap_run: int, window: int) -> int:
    """dy's boxes and x's, or its windows."""
    return (tile.m + tile.n // (tile.k * tap_run) * window) * STAGE_ROW_BYTES


def _added_bytes(tile: WgmmaTile, tap_run: int) -> int:
    """Of a stage, behind the copies: transposed windows. Other columns are transposed in place."""
    return _transposed_bytes(tile, tap_run) if tap_run > 1 else 0


def _transposed_bytes(tile: WgmmaTile, tap_run: int) -> int:
    """Of a stage's columns, or its windows, which twice as many positions are made of (``transposed_pixels.cuh``)."""
    if tile.element_bytes == _TRANSPOSED_ELEMENT_BYTES:
        return tile.n // tap_run * STAGE_ROW_BYTES * min(tap_run, 2)
    return 0
