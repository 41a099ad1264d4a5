"""The constants by which rows are divided among threads and blocks, as measured on an H200."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowLimits:
    """Values of the knobs, registers of a thread, threads, rows and bytes. Shares are of one."""

    #: Values of THREADS_PER_ROW, the threads of a team.
    teams: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    #: Values of MULTIPLY: groups of a row that a thread holds.
    items: tuple[int, ...] = (1, 2, 4, 8, 16)
    #: Values of TILE_CGA_M: blocks of a cluster.
    clusters: tuple[int, ...] = (1, 2, 4, 8)
    #: Values of CTA_COUNT: blocks of a cooperative grid that share rows.
    shares_of_grid: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)

    #: Registers that hold elements, usually.
    registers: int = 32
    #: Registers that hold elements, where a row needs as many.
    most_registers: int = 64
    #: Registers that hold elements, where a row is spread over many threads.
    spread_registers: int = 16
    #: Registers besides elements, where a thread holds values.
    value_registers: int = 28
    #: Registers besides elements, where a thread holds elements as they are read.
    read_registers: int = 32
    #: Registers for each group of values, in rows with one axis.
    group_registers: int = 3
    #: Registers for each group of values, in rows with several axes.
    walked_registers: int = 12
    #: Registers for a skew.
    skew_registers: int = 12
    #: Registers for each of the rows that are side by side in a vector.
    side_registers: int = 9
    #: Registers for values of rows with one axis that are made of several tensors.
    making_registers: int = 16
    #: Registers for the next row.
    ahead_registers: int = 8
    #: Groups that a thread holds at most of rows with several axes: each has a place of its own in registers.
    most_placed: int = 8

    #: Threads of a block at least, where rows are short.
    least_threads: int = 128
    #: Threads of a block at most.
    most_threads: int = 512
    #: Threads of a block with rows side by side that shares a multiprocessor with others.
    column_threads: int = 256
    #: Threads of a team of a spread row, at most.
    spread_team: int = 256
    #: Threads that read neighbouring vectors: a memory line of 128 bytes.
    line_team: int = 8
    #: Threads of a team whose rows may be packed, at least.
    least_packed_team: int = 32
    #: Threads side by side at least, whatever the vector.
    least_side: int = 8
    #: Elements side by side that make memory lines.
    most_side: int = 32
    #: The share of the groups of a team within a warp that its row should have.
    full_share: float = 0.875

    #: Blocks of a multiprocessor, so that some read rows while others join statistics and store.
    wanted_resident: int = 3
    #: Blocks of a multiprocessor that are so few that memory waits when they meet.
    few_resident: int = 2
    #: Rows for each block that are worth staying for.
    rows_worth_staying: int = 4
    #: Joined rows that have teams of their own, at most.
    most_apart: int = 24

    #: Bytes that a thread reads of a group.
    group_bytes: int = 16
    #: Bytes of a row that are worth a block of their own, where there are too few rows for the device.
    least_block_bytes: int = 8192
    #: Bytes of rows for each block of a cluster that are worth more blocks and the meeting of a whole grid.
    cluster_bytes: int = 65536
    #: Bytes of shared memory of a block besides rows.
    other_bytes: int = 4096
    #: Bytes of a row that a block without others on its multiprocessor can hold.
    most_staying_bytes: int = 131072
    #: The share of the multiprocessors that clusters can have.
    clustered_share: float = 0.875

    #: Bytes of a block's rows that are worth a ring of slots.
    least_ring_bytes: int = 98304
    #: Bytes of a block's rows that a ring of slots has room for.
    most_ring_bytes: int = 204800
    #: Groups of a thread in a ring, of rows with several axes.
    ring_items: int = 2
    #: Groups of a thread in all values of a chunk, where a row has several: so that several chunks are on their way.
    chunk_items: int = 4

    #: Groups of a thread in all values of a chunk of lines that blocks share in turns: fewer steps take less time.
    turn_line_items: int = 8
    #: Threads of each role at least, where blocks share rows in turns.
    turn_threads: int = 128
    #: Threads side by side at most there, so that the blocks' messages leave room for chunks.
    most_turn_side: int = 12
    #: Bytes of a block's share of rows side by side there, in a kernel with one value.
    turn_bytes: int = 65536
    #: Bytes of a block's share of rows side by side there, in a kernel with several values.
    turn_values_bytes: int = 98304
    #: Bytes of a block's share of a single row of each tensor there.
    turn_row_bytes: int = 32768
    #: Turns that are worth the first one, in which nothing is stored.
    least_turns: int = 16
    #: The share of the multiprocessors that has turns, at least.
    turning_share: float = 0.875


LIMITS = RowLimits()
