"""The constants that decide how rows are divided among threads and blocks, measured on an H200."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowLimits:
    """Values of knobs; registers, threads, groups, rows, blocks, bytes and shares, as each field's comment says."""

    #: Values of the knob THREADS_PER_ROW: threads of a team.
    teams: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    #: Values of the knob MULTIPLY: groups of a row in each thread.
    items: tuple[int, ...] = (1, 2, 4, 8, 16)
    #: Values of the knob TILE_CGA_M: blocks of a cluster.
    clusters: tuple[int, ...] = (1, 2, 4, 8)
    #: Values of the knob CTA_COUNT: blocks of a cooperative grid that share a row.
    shares_of_grid: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)

    #: Registers of a thread for cached elements by default.
    registers: int = 32
    #: Registers of a thread for cached elements at most.
    most_registers: int = 64
    #: Registers of a thread for cached elements, if a row is spread over many threads.
    spread_registers: int = 16
    #: Registers of a thread besides elements, if it caches converted values.
    value_registers: int = 28
    #: Registers of a thread besides elements, if it caches elements unconverted.
    read_registers: int = 32
    #: Further registers for each group of converted values, in rows with one axis.
    group_registers: int = 3
    #: Further registers for each group of converted values, in rows with several axes.
    walked_registers: int = 12
    #: Registers of a thread for a skew.
    skew_registers: int = 12
    #: Registers for each row of a vector, if the vector axis is kept.
    side_registers: int = 9
    #: Registers for computing values from several tensors, in rows with one axis.
    making_registers: int = 16
    #: Registers for prefetching the next row.
    ahead_registers: int = 8
    #: Groups of a thread at most in rows with several axes, where each group needs registers for its own address.
    most_placed: int = 8

    #: Threads of a block with short rows at least.
    least_threads: int = 128
    #: Threads of a block at most.
    most_threads: int = 512
    #: Threads of a block at most, if its rows lie side by side and it shares a multiprocessor with other blocks.
    column_threads: int = 256
    #: Threads of a team at most, if its row is spread.
    spread_team: int = 256
    #: Threads of a team that read one memory line: 128 bytes in vectors of 16.
    line_team: int = 8
    #: Threads of a team at least, if its rows are packed.
    least_packed_team: int = 32
    #: Threads side by side at least, whatever the vector's width.
    least_side: int = 8
    #: Elements side by side that fill memory lines.
    most_side: int = 32
    #: The least share of the groups of a team within a warp that its row fills.
    full_share: float = 0.875

    #: Resident blocks of a multiprocessor that suffice: some read rows while others reduce statistics and store.
    wanted_resident: int = 3
    #: Resident blocks of a multiprocessor with which memory still idles while their threads wait at barriers.
    few_resident: int = 2
    #: Groups of rows for each resident block from which a persistent grid pays.
    least_persistent_rows: int = 4
    #: Rows of a normalisation group at most, if each of them has a team of its own.
    most_own_teams: int = 24

    #: Bytes of a group of one tensor.
    group_bytes: int = 16
    #: Bytes of a row for each of several blocks at least, if there are too few rows for the device.
    least_block_bytes: int = 8192
    #: Bytes of rows for each block of a cluster from which more blocks and a grid barrier pay.
    cluster_bytes: int = 65536
    #: Bytes of shared memory of a block besides its rows.
    other_bytes: int = 4096
    #: Bytes of rows at most that a block keeps in shared memory, if it is alone on its multiprocessor.
    most_resident_bytes: int = 131072
    #: The share of the multiprocessors that clusters can use.
    clustered_share: float = 0.875

    #: Bytes of a block's rows at least, if their chunks go through a ring buffer.
    least_ring_bytes: int = 98304
    #: Bytes of a block's rows at most, if their chunks go through a ring buffer.
    most_ring_bytes: int = 204800
    #: Groups of a thread in a chunk of a ring buffer, in rows with several axes.
    ring_items: int = 2
    #: Groups of a thread in all values of a chunk, if a row has several chunks; more would leave too few in flight.
    chunk_items: int = 4

    #: Groups of a thread in all values of a chunk, in pipelined rows with one axis; larger chunks take fewer steps.
    pipelined_line_items: int = 8
    #: Threads of each role at least, in pipelined kernels.
    pipelined_threads: int = 128
    #: Threads side by side at most in pipelined kernels, so that the mailboxes leave shared memory for chunks.
    most_pipelined_side: int = 12
    #: Bytes of a block's share of pipelined rows side by side, in a kernel with one value for each element.
    pipelined_bytes: int = 65536
    #: Bytes of a block's share of pipelined rows side by side, in a kernel with several values for each element.
    pipelined_values_bytes: int = 98304
    #: Bytes of each tensor in a block's share of a single pipelined row.
    pipelined_row_bytes: int = 32768
    #: Rows that each block handles one after the other at least, so that filling the pipeline pays.
    least_pipelined_rows: int = 16
    #: The least share of the multiprocessors that a pipelined grid uses.
    pipelined_share: float = 0.875


LIMITS = RowLimits()
