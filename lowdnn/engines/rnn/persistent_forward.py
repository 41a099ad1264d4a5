"""The recurrence of a layer forward in one launch, which holds the recurrent weights on chip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import ceil_div, i32, target_label
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rnn.layers import ForwardLayer
from lowdnn.engines.rnn.narrow_tile import narrow_tiles
from lowdnn.engines.rnn.persistent_tile import wide_tiles
from lowdnn.engines.rnn.step_kernels import clip_mode
from lowdnn.engines.rnn.stepwise import CELLS, layer_fields
from lowdnn.ops.rnn import Rnn
from lowdnn.plan import KernelRef, Launch, MathUnit, Struct, Work, WorkspacePointer


class ForwardTile(Protocol):
    """A kernel and the tile of a block: ``units`` units of the ``columns`` sequences of its group."""

    @property
    def kernel(self) -> str: ...
    @property
    def columns(self) -> int: ...
    @property
    def units(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def group_bytes(self) -> tuple[int, ...]: ...
    @property
    def shared_bytes(self) -> int: ...
    @property
    def step_s(self) -> float: ...
    @property
    def form(self) -> str: ...
    @property
    def macros(self) -> tuple[tuple[str, int | str], ...]: ...


def forward_tiles(rnn: Rnn, arch: ArchSpec, columns: int = 0) -> Iterator[ForwardTile]:
    """Tiles that fit ``arch``, all blocks at a time, the fastest first.

    columns: the only ones, or 0.
    """
    every: list[ForwardTile] = [*narrow_tiles(rnn, arch), *wide_tiles(rnn, arch)]
    found = [tile for tile in every if columns in (0, tile.columns) and blocks(rnn, tile) <= arch.sm_count]
    return iter(sorted(found, key=lambda tile: tile.step_s))


def blocks(rnn: Rnn, tile: ForwardTile) -> int:
    """Blocks of all directions and groups."""
    return rnn.directions * _groups(rnn, tile) * _blocks_of_group(rnn, tile)


def add_persistent_forward(parts: PlanParts, layer: ForwardLayer, tile: ForwardTile, arch: ArchSpec) -> None:
    """Adds the launch of a layer with ``tile``."""
    rnn = layer.rnn
    fields = layer_fields(layer, rnn.hidden_size, layer.recurrent, layer.output, layer.output)
    teams = rnn.directions * _groups(rnn, tile)
    memory = (WorkspacePointer(parts.reserve(teams * size)) for size in tile.group_bytes)
    sizes = i32((_groups(rnn, tile), _blocks_of_group(rnn, tile)))
    launch = Launch(
        kernel=parts.kernel(_kernel(layer, tile, arch)),
        grid=(blocks(rnn, tile), 1, 1),
        block=(tile.threads, 1, 1),
        arguments=(Struct((Struct(fields), *memory, *sizes)),),
        shared_bytes=tile.shared_bytes,
        work=_work(layer, tile),
        cooperative=True,
    )
    parts.launches.append(launch)


def _groups(rnn: Rnn, tile: ForwardTile) -> int:
    """Groups of blocks in a direction."""
    return ceil_div(rnn.batch_size, tile.columns)


def _blocks_of_group(rnn: Rnn, tile: ForwardTile) -> int:
    return rnn.hidden_size // tile.units


def _work(layer: ForwardLayer, tile: ForwardTile) -> Work:
    rnn = layer.rnn
    rows = rnn.directions * rnn.max_length * rnn.batch_size * rnn.hidden_size
    return Work(
        flops=2 * rows * rnn.gates * rnn.hidden_size,
        bytes=rows * (2 * rnn.gates + 1) * layer.recurrent.element_bytes,
        unit=MathUnit.WGMMA_F16,
        busy_s=rnn.max_length * tile.step_s,
    )


def _kernel(layer: ForwardLayer, tile: ForwardTile, arch: ArchSpec) -> KernelRef:
    facts, target = dtypes.info(layer.recurrent.data_type), arch.generation.target
    cell, clips, saves = CELLS[layer.rnn.cell_mode], clip_mode(layer.rnn), int(layer.gates is not None)
    name = cell.removesuffix("Cell").lower()
    return KernelRef(
        name=f"{tile.kernel}_{name}_{facts.short_name}_{tile.form}_c{clips}_saves{saves}_{target_label(target)}",
        source=f"rnn/{tile.kernel}.cu",
        target=target,
        parameters=(("TYPE", facts.c_type), *tile.macros, ("CELL", cell), ("CLIPS", clips), ("SAVES", saves)),
    )
