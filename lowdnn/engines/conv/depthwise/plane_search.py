"""Candidate tiles of the kernels that walk along planes, and their estimated times.

The constants were fitted to some 430 measured tiles of 50 convolutions on an H200; the estimates are within a fifth of
the measured times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

from lowdnn.arch.multiprocessor import WARP_SCHEDULERS, WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.conv.depthwise.cost import StageCosts, Stages, estimated_blocks
from lowdnn.engines.conv.depthwise.plane_axes import WORD_BYTES, Staging, ThreadAxis, WindowAxis
from lowdnn.engines.launch import ceil_div
from lowdnn.enums import KnobType

#: Choices of a thread's rows.
ROWS = (1, 2, 4, 7)
#: Choices of a thread's columns.
COLUMNS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 14, 16)
#: Choices of a block's threads along rows and along columns.
UNITS = (*range(1, 17), 20)
#: Choices of the planes in shared memory.
STAGES = (2, 3, 4)
DEFAULT_STAGES = 3

#: Most registers for a thread's own values.
MAX_REGISTERS = 190
#: Further registers of a thread, as estimated.
_OTHER_REGISTERS = 40
#: The fewest further registers of a thread.
_LEAST_OTHER_REGISTERS = 20
#: Most copies of a thread for a plane.
_MAX_COPIES = 28
#: Most threads of a block.
_MAX_THREADS = 512
_MAX_SHARED_BYTES = 96 << 10

#: Threads of a block that the search aims at.
_WANTED_THREADS = (128, 192, 256, 384)
#: Shapes of a thread's work that the search tries.
_SHAPES = 4
#: Most parts of an axis that the search tries.
_MOST_PARTS = 10
#: Words of a vector copy of 16 bytes.
_VECTOR_WORDS = 4
#: Warps of a block below which it is slower than its instructions suggest (measured).
_LEAST_WARPS = 3
#: Least warps on a multiprocessor that keep it busy while one waits for its planes.
_LEAST_RESIDENT_WARPS = 6
_MAX_STAGED_BYTES = 90 << 10

#: Instructions of a copy.
_COPY = 12
#: Instructions of a target's epilogue.
_TARGET = 14
_COSTS: Final = StageCosts(
    start_instructions=0, stage_instructions=60, start_clocks=1250, stage_clocks=330, lone_clocks=1.2, exposed=0.4
)
#: Share of the L2 cache's rate that the copies reach.
_L2_SHARE = 0.38


@dataclass(frozen=True)
class Units:
    """A block's threads: ``unit_rows`` x ``unit_columns`` for each of ``lanes`` words, each with ``rows`` x ``columns``
    targets.
    """

    lanes: int
    rows: int
    columns: int
    unit_rows: int
    unit_columns: int

    @property
    def count(self) -> int:
        return self.unit_rows * self.unit_columns

    @property
    def threads(self) -> int:
        """Threads in whole warps."""
        return ceil_div(self.count * self.lanes, WARP_SIZE) * WARP_SIZE

    @property
    def shape(self) -> tuple[int, int]:
        """The block's rows and columns of targets."""
        return self.unit_rows * self.rows, self.unit_columns * self.columns

    def thread_axes(self, axes: tuple[WindowAxis, WindowAxis, WindowAxis]) -> tuple[ThreadAxis, ThreadAxis]:
        """The thread's axes of rows and columns."""
        return axes[1].thread(self.rows, self.unit_rows), axes[2].thread(self.columns, self.unit_columns)

    def box(self, axes: tuple[WindowAxis, WindowAxis, WindowAxis]) -> tuple[int, int]:
        """Rows and columns of the source that the block reads."""
        return axes[1].window(self.rows, self.unit_rows), axes[2].window(self.columns, self.unit_columns)

    @property
    def label(self) -> str:
        """The shape's part of kernel names."""
        return f"r{self.rows}w{self.columns}_l{self.lanes}b{self.threads}"


@dataclass(frozen=True)
class WalkParams:
    """The macros that both kernels have."""

    ROWS: int
    COLUMNS: int
    PLANE_TAPS: int
    ROW_TAPS: int
    COLUMN_TAPS: int
    ROW_STEP: int
    COLUMN_STEP: int
    ROW_WINDOW: int
    COLUMN_WINDOW: int
    ROW_PHASE: int
    COLUMN_PHASE: int
    SKIPS_ROWS: int
    LANES: int
    STAGES: int
    THREADS: int
    CLASSES: int = 1

    @classmethod
    def of(cls, axes: tuple[WindowAxis, WindowAxis, WindowAxis], units: Units, stages: int) -> WalkParams:
        planes, rows, columns = axes
        own_rows, own_columns = units.thread_axes(axes)
        return cls(
            ROWS=units.rows,
            COLUMNS=units.columns,
            PLANE_TAPS=planes.taps,
            ROW_TAPS=rows.taps,
            COLUMN_TAPS=columns.taps,
            ROW_STEP=rows.step,
            COLUMN_STEP=columns.step,
            ROW_WINDOW=own_rows.window,
            COLUMN_WINDOW=own_columns.window,
            ROW_PHASE=own_rows.phase,
            COLUMN_PHASE=own_columns.phase,
            SKIPS_ROWS=int(rows.targets > units.rows and 2 * (rows.taps - 1) >= rows.sources),
            LANES=units.lanes,
            STAGES=stages,
            THREADS=units.threads,
        )

    @property
    def window_label(self) -> str:
        """The window's part of kernel names."""
        skips = "k" if self.SKIPS_ROWS else ""
        return f"p{self.ROW_PHASE}x{self.COLUMN_PHASE}v{self.ROW_WINDOW}x{self.COLUMN_WINDOW}{skips}"


@dataclass(frozen=True)
class BlockWork:
    """The work of a block.

    instructions: instructions of a thread in each of ``steps`` steps.  outside_steps: its other instructions.
    registers: registers of a thread's own values.  staged: the planes that it copies in a step.
    """

    blocks: int
    threads: int
    steps: int
    instructions: int
    outside_steps: int
    registers: int
    shared_bytes: int
    staged: tuple[Staging, ...]

    @property
    def fits(self) -> bool:
        """Whether threads, registers and shared memory suffice; the warps of a scheduler share 512 registers for each
        lane.
        """
        warps = ceil_div(self.threads, WARP_SIZE * WARP_SCHEDULERS)
        return (
            self.threads <= _MAX_THREADS
            and sum(one.copies for one in self.staged) <= _MAX_COPIES
            and self.shared_bytes <= _MAX_SHARED_BYTES
            and self.registers <= MAX_REGISTERS
            and self.registers + _OTHER_REGISTERS <= 512 // warps // 8 * 8
        )

    def is_worth_a_look(self, arch: ArchSpec) -> bool:
        """Whether the block fits, and enough warps are resident on a multiprocessor."""
        return self.fits and self.resident(arch) * self.threads >= _LEAST_RESIDENT_WARPS * WARP_SIZE

    def crowds(self, arch: ArchSpec) -> bool:
        """Whether a multiprocessor has room for its even share of several blocks and half as many more.

        Blocks that start before the previous kernel has ended are then spread unevenly, and lose more than they save.
        """
        share = ceil_div(self.blocks, arch.sm_count)
        return share > 1 and 3 * share <= 2 * self.resident(arch, _LEAST_OTHER_REGISTERS)

    def resident(self, arch: ArchSpec, other_registers: int = _OTHER_REGISTERS) -> int:
        """Blocks on a multiprocessor at a time."""
        return estimated_blocks(arch, self.threads, self.registers + other_registers, self.shared_bytes)

    def seconds(self, moved_bytes: int, arch: ArchSpec) -> float:
        """Estimated seconds: waves of a multiprocessor's blocks, the bytes moved and the bytes read through the L2
        cache.
        """
        copies = sum(one.copies for one in self.staged) * _COPY
        instructions = self.steps * (self.instructions + copies) + self.outside_steps
        work = Stages(self.blocks, self.threads, instructions, self.steps, self.resident(arch))
        read_bytes = self.blocks * self.steps * sum(one.touched_bytes for one in self.staged)
        read_s = read_bytes / (_L2_SHARE * arch.timings.l2_bytes_per_s * arch.sm_count)
        return work.seconds(_COSTS, max(moved_bytes / arch.copy_bytes_per_s, read_s), arch)


def block_radices(units: Units, axes: tuple[WindowAxis, WindowAxis, WindowAxis], words: int) -> tuple[int, int, int]:
    """Blocks along ``words`` of channels, and along the columns and rows of targets."""
    rows, columns = units.shape
    return ceil_div(words, units.lanes), ceil_div(axes[2].targets, columns), ceil_div(axes[1].targets, rows)


def unit_knobs(best: Units, lanes: tuple[int, ...]) -> tuple[Knob, ...]:
    return (
        Knob("lanes", KnobType.BLOCK_CHANNELS, lanes, best.lanes, "words of channels of a block"),
        Knob("columns", KnobType.TILE_COLS, COLUMNS, best.columns, "neighbouring columns of a thread"),
        Knob("rows", KnobType.TILE_ROWS, ROWS, best.rows, "neighbouring rows of a thread"),
        Knob("unit_rows", KnobType.BLOCK_ROWS, UNITS, best.unit_rows, "threads of a block along the rows"),
        Knob("unit_columns", KnobType.BLOCK_COLS, UNITS, best.unit_columns, "threads of a block along the columns"),
    )


def chosen_units(chosen: Choices) -> Units:
    return Units(
        lanes=chosen[KnobType.BLOCK_CHANNELS],
        rows=chosen[KnobType.TILE_ROWS],
        columns=chosen[KnobType.TILE_COLS],
        unit_rows=chosen[KnobType.BLOCK_ROWS],
        unit_columns=chosen[KnobType.BLOCK_COLS],
    )


def unfit(units: Units, axes: tuple[WindowAxis, WindowAxis, WindowAxis], work: BlockWork) -> str:
    """Why a block cannot do the work, or an empty string."""
    if units.rows % axes[1].up or units.columns % axes[2].up:
        least = f"{axes[1].up} rows and {axes[2].up} columns"
        return f"knob_choices: expected multiples of {least} of a thread, got {units.rows} and {units.columns}"
    if work.fits:
        return ""
    got = f"{work.threads} threads of {work.registers} registers, {work.shared_bytes} bytes"
    return f"knob_choices: expected a block that fits registers and shared memory, got {got}"


def epilogue_instructions(targets: int) -> int:
    return targets * _TARGET


def units_of(
    lanes: tuple[int, ...], axes: tuple[WindowAxis, WindowAxis, WindowAxis], channels: int, most: int
) -> Iterator[Units]:
    """Candidate units: for the best shapes of a thread's work and each size of a block, the best arrangement.

    most: registers of a thread for its sums and a row of its window.
    """
    for shape in _shapes(axes, channels, most):
        own = _thread_instructions(axes, shape, channels)
        for count in lanes:
            yield from dict.fromkeys(
                one for threads in _WANTED_THREADS for one in _arranged(axes, shape, count, threads, own)
            )


def _arranged(
    axes: tuple[WindowAxis, WindowAxis, WindowAxis], shape: tuple[int, int], lanes: int, threads: int, own: int
) -> Iterator[Units]:
    """The block of at most ``threads`` threads with the fewest instructions for all targets, if there is one.

    own: instructions of a thread.
    """
    _, row_axis, column_axis = axes
    rows, columns = ceil_div(row_axis.targets, shape[0]), ceil_div(column_axis.targets, shape[1])
    least = min(_LEAST_WARPS * WARP_SIZE, rows * columns * lanes)

    def positions(unit_rows: int, unit_columns: int) -> int:
        return row_axis.window(shape[0], unit_rows) * column_axis.window(shape[1], unit_columns)

    def fits(unit_rows: int, unit_columns: int) -> bool:
        staged = positions(unit_rows, unit_columns) + unit_rows * unit_columns * prod(shape)
        has_room = staged * lanes * WORD_BYTES * DEFAULT_STAGES <= _MAX_STAGED_BYTES
        return has_room and least <= unit_rows * unit_columns * lanes <= threads

    def cost(units: tuple[int, int]) -> int:
        copied = positions(*units) * lanes * _COPY // (_VECTOR_WORDS * WARP_SIZE)
        blocks = ceil_div(rows, units[0]) * ceil_div(columns, units[1])
        return blocks * (ceil_div(prod(units) * lanes, WARP_SIZE) * own + copied)

    row_parts = _parts(rows)
    possible = [
        (unit_rows, unit_columns)
        for unit_columns in _parts(columns)
        for unit_rows in [next((part for part in row_parts if fits(part, unit_columns)), 0)]
        if unit_rows
    ]
    if possible:
        yield Units(lanes, *shape, *min(possible, key=cost))


def thread_products(axes: tuple[WindowAxis, WindowAxis, WindowAxis], rows: int, columns: int, channels: int) -> int:
    """Multiply-adds of a thread for a plane of sources."""
    planes, row_axis, column_axis = axes
    return planes.taps * row_axis.products(rows) * column_axis.products(columns) * channels


def thread_positions(axes: tuple[WindowAxis, WindowAxis, WindowAxis], rows: int, columns: int) -> int:
    """Positions of a thread's window."""
    return axes[1].window(rows) * axes[2].window(columns)


def _shapes(axes: tuple[WindowAxis, WindowAxis, WindowAxis], channels: int, most: int) -> list[tuple[int, int]]:
    """Rows and columns of a thread with the fewest instructions for each target that exists."""
    planes, row_axis, column_axis = axes

    def cost(shape: tuple[int, int]) -> float:
        rows, columns = shape
        excess = _excess(row_axis, rows) * _excess(column_axis, columns)
        return _thread_instructions(axes, shape, channels) * excess / (rows * columns)

    possible = [
        (rows, columns)
        for rows in ROWS
        for columns in COLUMNS
        if rows % row_axis.up == 0 and columns % column_axis.up == 0
        if rows < 2 * max(row_axis.targets, row_axis.up) and columns < 2 * max(column_axis.targets, column_axis.up)
        if (rows * columns * planes.taps + column_axis.window(columns)) * channels <= most
    ]
    return sorted(possible, key=cost)[:_SHAPES]


def _thread_instructions(axes: tuple[WindowAxis, WindowAxis, WindowAxis], shape: tuple[int, int], channels: int) -> int:
    """Instructions of a thread for a plane, without copies."""
    products = thread_products(axes, *shape, channels)
    moves = thread_positions(axes, *shape) * (1 + channels)
    return products + moves + epilogue_instructions(prod(shape)) + _COSTS.stage_instructions


def _excess(axis: WindowAxis, targets: int) -> float:
    """Targets that threads with ``targets`` each cover, divided by the targets that exist."""
    return ceil_div(axis.targets, targets) * targets / axis.targets


def _parts(count: int) -> tuple[int, ...]:
    """Lengths of the equal parts into which ``count`` may be cut, the last one shorter; the longest first."""
    lengths = {ceil_div(count, parts) for parts in range(1, _MOST_PARTS + 1)} | {1}
    return tuple(sorted((length for length in lengths if length in UNITS), reverse=True))
