"""The plan of ``conv_depthwise.cu``: forward pass and data gradient of depthwise convolutions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor, generate
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.conv.depthwise.correlation import (
    BLOCK_SIZES,
    MAX_REGISTERS,
    Correlation,
    RowsTile,
    is_dense,
    run_of,
)
from lowdnn.engines.conv.depthwise.cost import estimated_blocks, warps_of
from lowdnn.engines.conv.depthwise.row_walk import (
    CHANNELS,
    HIDDEN_S,
    PREFETCHES,
    ROWS,
    STRIPS,
    THREADS,
    Step,
    busy_clocks,
    latency_clocks,
    step_clocks,
)
from lowdnn.engines.launch import bytes_of, ceil_div, ceil_power, divider, i32, i64, macros, target_label
from lowdnn.engines.model.clock import overlap, waves
from lowdnn.engines.model.search import first_of_least
from lowdnn.enums import DataType, KnobType
from lowdnn.plan import KernelRef, Launch, MathUnit, Struct, TensorPointer, Work, WorkspacePointer

#: Registers that ptxas gives a thread in addition to its sums, weights and windows.
_OTHER_REGISTERS = 30
#: Blocks on each multiprocessor from which on segments are not cut further.
_ENOUGH_BLOCKS = 6


@dataclass(frozen=True)
class Params:
    """The macros of ``conv_depthwise.cu``, described there."""

    X_TYPE: str
    W_TYPE: str
    CHANNELS: int
    STRIP: int
    PLANE_TAPS: int
    ROW_TAPS: int
    COLUMN_TAPS: int
    ROW_STEP: int
    COLUMN_STEP: int
    SOURCES: int
    CLASSES: int
    IS_UNEVEN: int
    CLIP_FRONT: int
    CLIP_BACK: int
    COLUMNS_FIRST: int
    RUN: int
    PREFETCH: int
    UNROLL: int
    THREADS: int
    WEIGHT_ORDER: int
    WEIGHT_VECTOR: int


def kernel(correlation: Correlation, tile: RowsTile, functor: Functor, target: str) -> KernelRef:
    """The kernel for ``target`` (``dependent_target``)."""
    planes, rows, columns = correlation.axes
    front, back = columns.clips(tile.strip)
    params = Params(
        X_TYPE=dtypes.info(correlation.source.data_type).c_type,
        W_TYPE=dtypes.info(correlation.geometry.operation.filter.data_type).c_type,
        CHANNELS=tile.channels,
        STRIP=tile.strip,
        PLANE_TAPS=planes.taps,
        ROW_TAPS=rows.taps,
        COLUMN_TAPS=columns.taps,
        ROW_STEP=rows.step,
        COLUMN_STEP=columns.step,
        SOURCES=correlation.sources,
        CLASSES=_class_room(correlation),
        IS_UNEVEN=int(rows.is_uneven or columns.is_uneven),
        CLIP_FRONT=front,
        CLIP_BACK=back,
        COLUMNS_FIRST=int(correlation.columns_first),
        RUN=run_of(correlation, tile.channels, tile.strip),
        PREFETCH=tile.prefetch,
        UNROLL=correlation.unrolled(tile.prefetch),
        THREADS=tile.threads,
        WEIGHT_ORDER=correlation.weight_order if correlation.loads_own(tile) else 0,
        WEIGHT_VECTOR=correlation.weight_vector(tile.channels),
    )
    types = "_".join(
        dtypes.info(t.data_type).short_name for t in (correlation.source, correlation.geometry.operation.filter)
    )
    taps = f"{planes.taps}x{rows.taps}x{columns.taps}{'u' if params.IS_UNEVEN else ''}"
    walk = f"{taps}_s{rows.step}x{columns.step}_m{params.SOURCES}_k{params.CLASSES}"
    shape = f"c{tile.channels}w{tile.strip}{'t' if params.COLUMNS_FIRST else ''}r{params.RUN}_p{tile.prefetch}"
    shape += f"_x{front}x{back}"
    if params.WEIGHT_ORDER:
        shape += f"_o{params.WEIGHT_VECTOR}{'r' if params.WEIGHT_ORDER < 0 else ''}"
    label = target_label(target)
    return KernelRef(
        name=f"conv_depthwise_{types}_{walk}_{shape}_b{tile.threads}{correlation.reductions.label}_{label}_{functor.digest}",
        source="conv/depthwise/conv_depthwise.cu",
        target=target,
        parameters=(*macros(params), *correlation.reductions.macros),
        generated=functor.text,
    )


def launch(correlation: Correlation, tile: RowsTile, functor: Functor, totals: Sequence[WorkspacePointer]) -> Launch:
    """The launch of the kernel.  totals: pointers to the totals of the reductions."""
    geometry, w = correlation.geometry, correlation.geometry.operation.filter
    _, rows, columns = correlation.axes
    digits, groups = correlation.digits(tile), correlation.weight_groups(tile)
    thread = correlation.thread(tile.channels, tile.strip)
    filters, strides = correlation.weight_digits, correlation.weight_strides
    arguments = Struct(
        (
            *correlation.reductions.arguments(totals),
            TensorPointer(correlation.source.uid),
            TensorPointer(w.uid),
            *i64(geometry.strides(correlation.source)),
            *i64(strides),
            *(Struct(divider(radix)) for radix in filters),
            Struct(divider(thread.weights)),
            *i32((prod(filters), int(is_dense(filters, strides)))),
            *(axis.struct(_class_room(correlation)) for axis in correlation.axes),
            Struct(divider(correlation.class_count)),
            Struct(divider(len(columns.classes))),
            Struct(divider(len(rows.classes))),
            *(Struct(divider(radix)) for radix in digits),
            *i32((prod(digits), tile.segment, groups, correlation.fan)),
            functor.arguments,
        )
    )
    work = Work(
        flops=2 * prod(digits) * correlation.class_count * tile.segment * thread.products,
        bytes=bytes_of((correlation.source, w, *geometry.dag.loads, *geometry.dag.stores))
        + correlation.reductions.totals_bytes(correlation.reduction_slices(tile)),
        unit=MathUnit.FMA_F32,
    )
    return Launch(
        kernel=0,
        grid=(correlation.block_count(tile), 1, 1),
        block=(tile.threads, 1, 1),
        arguments=(arguments,),
        shared_bytes=correlation.weights_bytes(tile),
        work=work,
    )


def functor_of(correlation: Correlation, tile: RowsTile) -> Functor:
    """The epilogue's functor, along the channels or along a run of columns."""
    axis = 1 if run_of(correlation, tile.channels, tile.strip) == 1 else correlation.space.rank - 1
    return generate(
        replace(correlation.geometry.dag, result=None),
        accumulator=DataType.FLOAT,
        vector_axis=axis,
        reduced=correlation.reductions.reduced,
        space=correlation.space,
    )


def knobs(correlation: Correlation, arch: ArchSpec) -> tuple[Knob, ...]:
    best = best_tile(correlation, arch)
    channels = tuple(c for c in CHANNELS if c <= correlation.most_channels)
    strips = tuple(s for s in STRIPS if correlation.fits(replace(best, channels=1, strip=s, prefetch=1)))
    return (
        Knob("channels", KnobType.LOAD_SIZE, channels, best.channels, "neighbouring channels of a thread"),
        Knob("strip", KnobType.TILE_COLS, strips, best.strip, "neighbouring columns of a thread"),
        Knob("segment", KnobType.TILE_ROWS, correlation.segments, best.segment, "rows that a thread finishes"),
        Knob("prefetch", KnobType.STAGES, PREFETCHES, best.prefetch, "source rows that a thread reads ahead"),
        Knob("block_size", KnobType.BLOCK_SIZE, BLOCK_SIZES, best.threads, "threads of a block"),
    )


def tile_of(correlation: Correlation, chosen: Choices) -> RowsTile | str:
    """The tile of resolved knobs, or why there is none."""
    tile = RowsTile(
        channels=chosen[KnobType.LOAD_SIZE],
        strip=chosen[KnobType.TILE_COLS],
        segment=chosen[KnobType.TILE_ROWS],
        prefetch=chosen[KnobType.STAGES],
        threads=chosen[KnobType.BLOCK_SIZE],
    )
    if correlation.fits(tile):
        return tile
    needed = correlation.registers(tile)
    return f"knob_choices: expected at most {MAX_REGISTERS} registers of a thread's own data, got {needed}"


def best_tile(correlation: Correlation, arch: ArchSpec) -> RowsTile:
    """The fastest tile by ``estimated_s``."""

    def cost(tile: RowsTile) -> float:
        return estimated_s(correlation, _reading_ahead(correlation, tile, arch), arch)

    best = first_of_least(_bounded_tiles(correlation, arch), cost)
    return _reading_ahead(correlation, best, arch) if best else RowsTile(1, 1, correlation.axes[1].count, 1, THREADS)


def estimated_s(correlation: Correlation, tile: RowsTile, arch: ArchSpec) -> float:
    """Estimated seconds: waves of a multiprocessor's blocks, and the bytes moved."""
    step, steps = _step(correlation, tile), _steps(correlation, tile.segment)
    weights = correlation.thread(tile.channels, tile.strip).weights

    def wave_clocks(blocks: int) -> float:
        warps = warps_of(blocks * tile.threads)
        return _start_clocks(weights, warps, arch) + steps * step_clocks(step, warps, arch)

    blocks = ceil_div(correlation.block_count(tile), arch.sm_count)
    walk_s = waves(blocks, _resident(correlation, tile, arch), wave_clocks) / arch.clock_hz
    return overlap(walk_s, sum(correlation.moved) / arch.copy_bytes_per_s, ROWS.exposed)


def _start_clocks(weights: int, warps: float, arch: ArchSpec) -> float:
    """Clocks until all ``warps`` warps of a scheduler have their weights and first rows."""
    return ROWS.start_latencies * latency_clocks(arch) + warps * _weight_clocks(weights)


def _weight_clocks(weights: int) -> int:
    """Clocks of a warp for ``weights`` weights."""
    return ROWS.weights_clocks + ROWS.weight_clocks * weights


def _steps(correlation: Correlation, segment: int) -> int:
    """Source rows that a thread walks along."""
    rows = correlation.axes[1]
    edges = rows.classes[0].first_step if segment >= rows.count else 0
    return max(1, segment + correlation.depth - 1 - 2 * edges)


def _step(correlation: Correlation, tile: RowsTile) -> Step:
    """The costs of source rows, multiply-adds, moves of sums, and the epilogue."""
    step = correlation.thread(tile.channels, tile.strip).step
    stays = correlation.unrolled(tile.prefetch) % correlation.depth == 0
    moves = 0 if stays else correlation.depth * tile.strip * tile.channels
    ahead = tile.prefetch / correlation.subrows
    return Step(step.instructions + moves, step.sectors_read, step.sectors_written, ahead)


def _resident(correlation: Correlation, tile: RowsTile, arch: ArchSpec) -> int:
    return estimated_blocks(arch, tile.threads, correlation.registers(tile) + _OTHER_REGISTERS)


def _bounded_tiles(correlation: Correlation, arch: ArchSpec) -> Iterator[tuple[float, RowsTile]]:
    """Candidates before they read ahead: segments that give each multiprocessor a block, and not far too many blocks.

    Each comes with a lower bound of its time, ``estimated_s`` with rows that are never waited for.
    """
    copy_s = sum(correlation.moved) / arch.copy_bytes_per_s
    start, warps_of_block = _start_clocks(0, 0.0, arch), warps_of(THREADS)
    counts = [
        (segment, _steps(correlation, segment), ceil_div(correlation.axes[1].count, segment))
        for segment in reversed(correlation.segments)
    ]
    for channels in (c for c in CHANNELS if c <= correlation.most_channels):
        for strip in correlation.axes[2].useful_strips(STRIPS):
            one = RowsTile(channels, strip, 1, 1, THREADS)
            if not correlation.fits(one):
                continue
            thread, resident = correlation.thread(channels, strip), _resident(correlation, one, arch)
            weight_clocks = _weight_clocks(thread.weights)
            for segment, steps, count in counts:
                blocks = ceil_div(thread.lines * count, THREADS) * correlation.class_count
                if blocks >= arch.sm_count or segment == correlation.segments[0]:
                    own = ceil_div(blocks, arch.sm_count)
                    rounds, warps = ceil_div(own, resident), own * warps_of_block
                    clocks = rounds * start + warps * weight_clocks + steps * busy_clocks(thread.step, warps, rounds)
                    least_s = overlap(clocks / arch.clock_hz, copy_s, ROWS.exposed)
                    yield least_s, RowsTile(channels, strip, segment, 1, THREADS)
                if blocks >= _ENOUGH_BLOCKS * arch.sm_count:
                    break


def _reading_ahead(correlation: Correlation, tile: RowsTile, arch: ArchSpec) -> RowsTile:
    """The tile with enough rows in flight to hide the latency, or more if that saves moves of sums between
    registers."""
    thread, blocks = (
        correlation.thread(tile.channels, tile.strip),
        ceil_div(correlation.block_count(tile), arch.sm_count),
    )
    warps = warps_of(min(blocks, _resident(correlation, tile, arch)) * tile.threads)
    row_s = warps * _step(correlation, tile).instructions / (correlation.subrows * arch.clock_hz)
    rows = min(tile.segment + correlation.depth - 1, correlation.axes[1].classes[0].end_step) * correlation.subrows
    possible = [p for p in correlation.prefetches if p == 1 or p <= rows]
    fitting = [p for p in possible if correlation.fits_ahead(thread, p)]
    enough = max(p for p in fitting if (p - 1) * row_s < HIDDEN_S)
    still = (p for p in fitting if p >= enough and correlation.unrolled(p) % correlation.depth == 0)
    return replace(tile, prefetch=next(still, enough))


def _class_room(correlation: Correlation) -> int:
    """Classes that the kernel has room for: a power of two, so that few kernels serve all shapes."""
    return ceil_power(max(len(axis.classes) for axis in correlation.axes))
