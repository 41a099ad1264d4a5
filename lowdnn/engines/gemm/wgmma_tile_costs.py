"""The time of one wgmma tile on its multiprocessor: the multiplications and copies of a stage, the store of
accumulators.

The costs here and in ``wgmma_times`` were fitted together to 8,300 variants of 480 products and convolutions, timed on
an H200. The tiles that the model chooses are 2.5 % slower on average than the best ones tried. The costs are the
kernels' own; rates and latencies of the device are ``ArchSpec.timings``.
"""

from __future__ import annotations

from math import gcd

from lowdnn.arch.multiprocessor import WARP_SCHEDULERS, WARP_SIZE
from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES
from lowdnn.engines.gemm.wgmma_machine import Machine
from lowdnn.engines.gemm.wgmma_product import Conversion, WgmmaProduct
from lowdnn.engines.gemm.wgmma_tiles import WARPGROUP_ROWS, WgmmaTile
from lowdnn.engines.model.clock import stage_latency_s

#: Share of a row's cost that is added if the row lies in two cache lines.
MISALIGNED_ROW_COST = 0.9
#: Least share of a row's cost, for 64 bytes.
_HALF_ROW_COST = 0.82
#: Share of a row's cost that remains if both operands are MN-major: blocks read the lines of the same k together.
_LINES_OF_K_COST = 0.85
#: Least seconds of a stage's row that comes by im2col map.
_PIXEL_S = 1.8e-9
#: Least seconds of such a row for a filter of more than 7 taps along an axis.
_TAPS_PIXEL_S = 3e-9
#: Least seconds of such a row if it is mostly padding.
_NARROW_PIXEL_S = 16e-9
#: Multiple of the tensor cores' sustained rate that a multiprocessor reaches while others leave it their power. It was
#: observed with matrices only, not with pixels.
_BURST = 1.05
#: Bytes of shared memory per second, for reads of wgmma and writes of copies.
_SHARED_BYTES_PER_S = 276e9
#: Seconds between the multiplications of one stage and those of the next.
STAGE_S = 16e-9
#: Seconds that are added to a stage whose sums are added up in full fp32.
_PROMOTED_STAGE_S = 70e-9
#: Columns of a tile whose A goes through registers in parts, for which the tensor cores wait as long as for fewer.
_SPLIT_COLUMNS = 88
#: Seconds that are added for 64 rows of such a stage if no other warpgroup multiplies while they are split and added.
_LONE_SPLIT_S = 0.13e-6
#: Share that is added to the multiplications of three warpgroups with 64 rows each and few columns.
_NARROW_TEAM_LOSS = 0.1
#: Columns from which on that share is not added.
_NARROW_TEAM_COLUMNS = 128
#: Elements per clock that pass through a functor without functions on their way to the tensor cores.
_CONVERTED_PER_CLOCK = 12
#: Instructions of one function of a functor, by count.
_FUNCTION_INSTRUCTIONS = 15
#: Seconds that the tensor cores wait for a stage of A in registers whose functor needs more than pairs of its elements.
_LATE_CONVERSION_S = 0.3e-6
#: Columns of a chunk of accumulators that is stored at a time.
_CHUNK_COLUMNS = 64
#: Seconds to store 64 rows of a chunk by tensor map.
_CHUNK_S = 0.08e-6
#: Seconds to store 64 rows of a chunk as pixels of a part.
_PIXELS_CHUNK_S = 0.35e-6
#: Seconds to store 64 rows of a chunk with an operand of the output's size.
_OPERAND_CHUNK_S = 1.2e-6
#: Elements per second of a warpgroup whose functor stores at coordinates that take divisions, with one warp on each
#: scheduler.
_LOCATED_ELEMENTS_PER_S = 4.2e9


def stage_seconds(traits: WgmmaProduct, tile: WgmmaTile, machine: Machine) -> float:
    """Seconds of the multiplications of one stage, independent of the number of tiles on a multiprocessor."""
    burst = 1 if traits.is_a_pixels or traits.is_b_pixels else _BURST
    arithmetic = arithmetic_seconds(tile, machine) / burst
    # Each 64 rows read all of B again, in each term; the copies write both operands.
    read = (tile.m // WARPGROUP_ROWS) * (WARPGROUP_ROWS + traits.type.terms * tile.n) * tile.row_bytes * tile.taps
    if traits.conversion is Conversion.IN_PLACE:
        read += 2 * _converted_elements(traits, tile) * tile.element_bytes
    shared = (read + tile.stage_bytes) / _SHARED_BYTES_PER_S
    convert_clocks = _converted_elements(traits, tile) * conversion_clocks(traits.functions)
    convert = convert_clocks / machine.arch.timings.light_clock_hz
    late = _LATE_CONVERSION_S * traits.converts_late
    return max(arithmetic, shared, convert) + late + STAGE_S


def arithmetic_seconds(tile: WgmmaTile, machine: Machine) -> float:
    """Seconds of one stage at the tensor cores' sustained rate, with the wait for its promotion."""
    is_narrow_team = tile.m == 3 * WARPGROUP_ROWS and tile.n < _NARROW_TEAM_COLUMNS
    multiply = 2 * tile.m * tile.n * tile.k / machine.flops * (1 + _NARROW_TEAM_LOSS * is_narrow_team)
    if tile.b_parts > 1:
        is_alone = tile.warpgroups * tile.blocks_per_sm == 1
        return multiply * max(1.0, _SPLIT_COLUMNS / tile.n) + is_alone * _LONE_SPLIT_S * (tile.m // WARPGROUP_ROWS)
    return multiply + _PROMOTED_STAGE_S * tile.is_promoted


def copy_seconds(traits: WgmmaProduct, tile: WgmmaTile, blocks: int, machine: Machine, reach: float = 1.0) -> float:
    """Seconds of the copies of one stage, with ``blocks`` tiles on a multiprocessor.

    reach: the multiple of the L2 cache's rate that the multiprocessor gets.
    """
    l2_bytes_per_s = reach * machine.arch.timings.l2_bytes_per_s
    rows, columns = tile.loaded_a_lines / tile.cluster_n, tile.loaded_b_lines / tile.cluster_m
    lines = rows + columns + MISALIGNED_ROW_COST * (rows * traits.is_a_misaligned + columns * traits.is_b_misaligned)
    line_bytes = max(tile.row_bytes, _HALF_ROW_COST * STAGE_ROW_BYTES)
    if traits.is_a_mn_major and traits.is_b_mn_major:
        line_bytes *= _LINES_OF_K_COST
    pixels = rows * traits.is_a_pixels + columns * traits.is_b_pixels
    pixel_s = _TAPS_PIXEL_S if traits.has_many_taps else _PIXEL_S
    pixel_s = _NARROW_PIXEL_S if traits.has_narrow_pixels else pixel_s
    l2 = max(lines * line_bytes / l2_bytes_per_s, pixels * pixel_s)
    # One stage is multiplied while the copies of the others are in flight.
    on_their_way = (tile.stages - 1) * blocks
    return max(l2, stage_latency_s(machine.arch, on_their_way, tile.stage_bytes / l2_bytes_per_s))


def leaving_seconds(traits: WgmmaProduct, tile: WgmmaTile, machine: Machine) -> float:
    """Seconds to store a tile's accumulators, in addition to the time of their bytes."""
    computed_s = function_seconds(traits, tile, machine)
    if traits.is_located:
        return tile.m * tile.n / tile.warpgroups / _LOCATED_ELEMENTS_PER_S + computed_s
    chunk_s = _OPERAND_CHUNK_S if traits.has_operand else _PIXELS_CHUNK_S if traits.classes else _CHUNK_S
    chunks = tile.m // (WARPGROUP_ROWS * tile.warpgroups) * (tile.n // gcd(tile.n, _CHUNK_COLUMNS))
    return chunks * chunk_s + computed_s


def function_seconds(traits: WgmmaProduct, tile: WgmmaTile, machine: Machine) -> float:
    """Seconds of the epilogue's functions, for the accumulators of a warpgroup."""
    clocks = tile.m * tile.n / tile.warpgroups * _function_clocks(traits.epilogue_functions)
    return clocks / machine.arch.timings.light_clock_hz


def conversion_clocks(functions: int) -> float:
    """Clocks of a multiprocessor for an element that passes through a functor with ``functions`` functions."""
    return 1 / _CONVERTED_PER_CLOCK + _function_clocks(functions)


def _function_clocks(functions: int) -> float:
    """Clocks of a multiprocessor, each of which lets every lane execute one instruction."""
    return functions * (_FUNCTION_INSTRUCTIONS / (WARP_SIZE * WARP_SCHEDULERS))


def _converted_elements(product: WgmmaProduct, tile: WgmmaTile) -> int:
    """Elements of one stage that pass through a functor, or are split in registers."""
    if product.conversion is Conversion.REGISTERS or product.type.is_split:
        return tile.m * tile.k
    lines = tile.a_lines if product.is_a_pixels else tile.b_lines
    return lines * tile.row_bytes // tile.element_bytes if product.conversion is Conversion.IN_PLACE else 0
