"""The wgmma tiles that a product may have: a menu of shapes and clusters, within registers and shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowdnn.engines.gemm.wgmma_machine import Machine
from lowdnn.engines.gemm.wgmma_product import MAX_ACCUMULATORS, Conversion, WgmmaProduct
from lowdnn.engines.gemm.wgmma_tiles import MN_MAJOR_BOX, WARPGROUP_ROWS, WARPGROUP_THREADS, TileStore, WgmmaTile

#: WARP_SPEC_CFG -> (teams, warpgroups of a team, blocks on a multiprocessor): two cooperative warpgroups; two in
#: ping-pong; two blocks with one warpgroup each; three cooperative warpgroups.
WARP_CONFIGS = ((1, 2, 1), (2, 1, 1), (1, 1, 2), (1, 3, 1))
_COOPERATIVE, _PING_PONG, _TWO_BLOCKS, _COOPERATIVE_3 = range(4)
MAX_STAGES = 12
#: Most elements of a tile for which a k shared by two blocks is tried.
_MOST_DIVIDED_TILE = 64 * 64
#: The unit of columns that blocks which share a tile's k store.
_SHARE_UNIT = 8
#: Registers that ptxas needs in addition to accumulators. They come out of the launch's registers or, for more than
#: MAX_ACCUMULATORS accumulators of a thread, out of those that its warpgroup has taken since.
_OTHER_REGISTERS = 26
#: Most accumulators of a thread where A goes through registers.
_MAX_CONVERTED_ACCUMULATORS = 96
#: Further registers of a thread that converts an operand of a convolution: the positions of its pixels and taps.
_CONVERTING_REGISTERS = 112
#: Further registers of a thread whose functor waits for more than pairs of A's elements.
_LATE_CONVERSION_REGISTERS = 66
#: Further registers of a thread that multiplies in terms: two sets of fragments, in parts.
_SPLIT_REGISTERS = 64 + 40
#: Chunks in flight of an operand of the output's size, if they leave ``_STAGES_WITH_OPERAND`` stages.
_OPERAND_BUFFERS = 4
#: Chunks in flight otherwise.
_LEAST_OPERAND_BUFFERS = 2
#: Stages that ``_OPERAND_BUFFERS`` must leave.
_STAGES_WITH_OPERAND = 3
#: Stages that make a tile give up its second staging buffer.
_ENOUGH_STAGES = 4


@dataclass(frozen=True)
class _Shape:
    m: int
    n: int
    config: int


#: Tiles that are worth trying, by the warps that suit them.
MENU = (
    *(_Shape(128, n, _COOPERATIVE) for n in (256, 224, 192, 160, 144, 128)),
    *(_Shape(256, n, _COOPERATIVE) for n in (192, 160, 128, 96, 64)),
    *(_Shape(512, n, _COOPERATIVE) for n in (64, 32, 16)),
    *(_Shape(192, n, _COOPERATIVE_3) for n in (192, 176, 160, 128, 96)),
    *(_Shape(384, n, _COOPERATIVE_3) for n in (96, 64, 32)),
    *(_Shape(256, n, _PING_PONG) for n in (64, 48, 32, 16)),
    *(_Shape(128, n, _PING_PONG) for n in (192, 160, 128, 112, 96, 80, 64, 48, 32, 16)),
    *(_Shape(64, n, _PING_PONG) for n in (256, 224, 192, 128, 96, 64, 48, 32, 24, 16, 8)),
    *(_Shape(128, n, _TWO_BLOCKS) for n in (96, 64, 32)),
    *(_Shape(64, n, _TWO_BLOCKS) for n in (192, 128, 96, 64, 32)),
)


def menu_tiles(traits: WgmmaProduct, machine: Machine) -> tuple[WgmmaTile, ...]:
    """The menu with as many stages as fit, for single blocks and for clusters of two that share an operand; larger
    clusters do not fit on every part of the device. Small tiles also come for blocks that share their k.

    traits: a product without its extents.
    """
    found: list[WgmmaTile] = []
    for shape in MENU:
        tile = tile_of(traits, shape.m, shape.n, 1, WARP_CONFIGS[shape.config], (1, 1))
        choices = [tile]
        if traits.allows_clusters and traits.tries_clusters:
            choices += [replace(tile, cluster_m=2), replace(tile, cluster_n=2)]
            choices += [replace(tile, cluster_k=sharers) for sharers in (2, 4) if _may_share_k(traits, tile, sharers)]
        for choice in choices:
            if shape.n % traits.column_unit or not _divides(traits, choice):
                continue
            if traits.has_operand:
                choice = with_operand_buffers(choice, machine)
            stages = most_stages(choice, machine)
            if not traits.sums_columns and stages < _ENOUGH_STAGES:
                single = replace(choice, staging_buffers=1)
                if most_stages(single, machine) >= _ENOUGH_STAGES:
                    choice, stages = single, most_stages(single, machine)
            if stages >= 2:
                found.append(replace(choice, stages=stages))
    return tuple(found)


def _may_share_k(traits: WgmmaProduct, tile: WgmmaTile, sharers: int) -> bool:
    """Whether sharing k may pay, as measured; more than two blocks share larger tiles, one on each multiprocessor."""
    is_small = tile.m * tile.n <= _MOST_DIVIDED_TILE * sharers // 2 and tile.blocks_per_sm * sharers <= 4
    return traits.allows_split and is_small and tile.n % (sharers * _SHARE_UNIT) == 0


def tile_of(
    traits: WgmmaProduct, m: int, n: int, stages: int, config: tuple[int, int, int], cluster: tuple[int, int]
) -> WgmmaTile:
    teams, warpgroups, blocks_per_sm = config
    return WgmmaTile(
        m,
        n,
        stages,
        teams,
        warpgroups,
        *cluster,
        blocks_per_sm,
        traits.type.element_bytes,
        traits.is_promoted,
        window=traits.window,
        resident_blocks=traits.resident_blocks,
        keeps_b=traits.is_b_resident,
        row_bytes=traits.row_bytes,
        table_bytes=traits.table_bytes,
        column_box=MN_MAJOR_BOX if traits.is_b_mn_major else 1,
        b_parts=2 if traits.type.is_split else 1,
    )


def most_stages(tile: WgmmaTile, machine: Machine) -> int:
    """Stages that fit next to the staging areas and the resident operand."""
    return min(tile.stages_in(machine.shared_budget(tile), TileStore.MAP), MAX_STAGES)


def with_operand_buffers(tile: WgmmaTile, machine: Machine) -> WgmmaTile:
    most = replace(tile, operand_buffers=_OPERAND_BUFFERS)
    if most_stages(most, machine) >= _STAGES_WITH_OPERAND:
        return most
    return replace(tile, operand_buffers=_LEAST_OPERAND_BUFFERS)


def fits_instruction(tile: WgmmaTile) -> bool:
    """Whether registers at launch hold the accumulators of one wgmma; registers that warpgroups take later do not
    count.
    """
    return tile.n * WARPGROUP_ROWS // WARPGROUP_THREADS <= tile.launched_registers - _OTHER_REGISTERS


def _divides(traits: WgmmaProduct, tile: WgmmaTile) -> bool:
    """Whether warpgroups get whole parts of the tile, and blocks of a cluster whole boxes and swizzle patterns."""
    # Blocks divide K-major operands by lines, MN-major ones by their k.
    unit_m = tile.line_unit * (1 if traits.is_a_mn_major else tile.cluster_n)
    unit_n = tile.line_unit * (1 if traits.is_b_mn_major else tile.cluster_m)
    most = min(MAX_ACCUMULATORS, tile.launched_registers - _OTHER_REGISTERS)
    if traits.most_accumulators > MAX_ACCUMULATORS:
        most = min(traits.most_accumulators, tile.registers.consumer - _OTHER_REGISTERS)
    if traits.conversion is not Conversion.NONE and (traits.is_a_pixels or traits.is_b_pixels):
        most = min(most, tile.registers.consumer - _CONVERTING_REGISTERS)
    if traits.conversion is Conversion.REGISTERS:
        most = min(most, _MAX_CONVERTED_ACCUMULATORS // tile.blocks_per_sm) if tile.m == 64 * tile.warpgroups else 0
        if traits.converts_late:
            most = min(most, tile.launched_registers - _LATE_CONVERSION_REGISTERS)
    if traits.type.is_split:
        most = min(most, most_split_accumulators(tile))
    fits = tile.m % (64 * tile.warpgroups) == 0 and tile.accumulators <= most and fits_instruction(tile)
    return fits and tile.m % unit_m == 0 and tile.n % unit_n == 0


def most_split_accumulators(tile: WgmmaTile) -> int:
    """The most accumulators of a thread where products are split into terms; 0 if a warpgroup's parts of 64 rows cannot
    alternate between two sets of fragments.
    """
    parts = tile.m // (WARPGROUP_ROWS * tile.warpgroups)
    takes_turns = parts == 1 or parts % 2 == 0
    return min(MAX_ACCUMULATORS, tile.registers.consumer - _SPLIT_REGISTERS) if takes_turns else 0


def tile_problem(product: WgmmaProduct, tile: WgmmaTile, machine: Machine) -> str:
    if tile.n % product.column_unit:
        return f"TILE_N a multiple of {product.column_unit}"
    if not _divides(product, tile):
        return (
            f"TILE_M a multiple of 64 for each warpgroup, at most {product.most_accumulators} accumulators of a thread "
            f"and {_OTHER_REGISTERS} other registers, whole groups of {tile.line_unit} rows of a K-major operand "
            f"for each block that shares it; one such multiple, {_MAX_CONVERTED_ACCUMULATORS} accumulators where A "
            "goes through registers"
        )
    if product.is_a_resident and (tile.cluster > 1 or tile.m < product.m):
        return f"one block of at least {product.m} rows, of which A stays in shared memory"
    if product.is_b_resident and (tile.cluster > 1 or tile.n < product.n):
        return f"one block of at least {product.n} columns, of which B stays in shared memory"
    budget = machine.shared_budget(tile)
    if tile.shared_bytes(TileStore.MAP) > budget:
        return f"at most {budget} bytes of shared memory (take fewer stages or a smaller tile)"
    return ""
