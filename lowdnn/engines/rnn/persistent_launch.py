"""The launch of a recurrent layer whose weights stay on chip, forward or backward."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import ceil_div, i32, target_label
from lowdnn.engines.model.occupancy import clustered_sms
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rnn.array import Array
from lowdnn.engines.rnn.step_kernels import clip_mode
from lowdnn.engines.rnn.stepwise import CELLS
from lowdnn.ops.rnn import Rnn
from lowdnn.plan import Argument, KernelRef, Launch, MathUnit, Struct, Work, WorkspacePointer

Macros = tuple[tuple[str, int | str], ...]


class LayerTile(Protocol):
    """A kernel and its tile: ``units`` units of the ``sequences`` sequences of a group, for each cluster of blocks.

    cluster: the blocks of a cluster; 1 for blocks that have none.  columns: sequences of a product.
    group_bytes: bytes of each array of a group of blocks in the workspace.  step_s: seconds of a step.
    form: the tile as the kernel's name has it.
    """

    @property
    def kernel(self) -> str: ...
    @property
    def columns(self) -> int: ...
    @property
    def sequences(self) -> int: ...
    @property
    def units(self) -> int: ...
    @property
    def cluster(self) -> int: ...
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
    def macros(self) -> Macros: ...


def blocks(rnn: Rnn, tile: LayerTile) -> int:
    """Blocks of all directions and groups."""
    return rnn.directions * _groups(rnn, tile) * _clusters_of_group(rnn, tile) * tile.cluster


def are_resident(rnn: Rnn, tile: LayerTile, arch: ArchSpec) -> bool:
    """Whether all blocks fit ``arch`` at a time."""
    return blocks(rnn, tile) <= clustered_sms(arch.sm_count, tile.cluster) // tile.cluster * tile.cluster


def fastest(tiles: Iterable[LayerTile]) -> list[LayerTile]:
    """``tiles`` in the order of their steps' seconds."""
    return sorted(tiles, key=lambda tile: tile.step_s)


def add_layer(
    parts: PlanParts,
    rnn: Rnn,
    tile: LayerTile,
    arch: ArchSpec,
    weights: Array,
    fields: tuple[Argument, ...],
    values: int,
    saves: bool | None = None,
) -> None:
    """Adds the launch of a layer.

    fields: the members of its ``Layer``.  values: elements that a unit of a step reads and writes.  saves: the macro
    SAVES of kernels that have it.
    """
    teams = rnn.directions * _groups(rnn, tile)
    memory = (WorkspacePointer(parts.reserve(teams * size)) for size in tile.group_bytes)
    sizes = i32((_groups(rnn, tile), _clusters_of_group(rnn, tile)))
    units = rnn.directions * rnn.max_length * rnn.batch_size * rnn.hidden_size
    launch = Launch(
        kernel=parts.kernel(_kernel(rnn, tile, arch, weights, saves)),
        grid=(blocks(rnn, tile), 1, 1),
        block=(tile.threads, 1, 1),
        arguments=(Struct((Struct(fields), *memory, *sizes)),),
        shared_bytes=tile.shared_bytes,
        cluster=(tile.cluster, 1, 1),
        work=Work(
            flops=2 * units * rnn.gates * rnn.hidden_size,
            bytes=units * values * weights.element_bytes,
            unit=MathUnit.WGMMA_F16,
            busy_s=rnn.max_length * tile.step_s,
        ),
        cooperative=True,
    )
    parts.launches.append(launch)


def _groups(rnn: Rnn, tile: LayerTile) -> int:
    """Groups of blocks in a direction."""
    return ceil_div(rnn.batch_size, tile.sequences)


def _clusters_of_group(rnn: Rnn, tile: LayerTile) -> int:
    return rnn.hidden_size // tile.units


def _kernel(rnn: Rnn, tile: LayerTile, arch: ArchSpec, weights: Array, saves: bool | None) -> KernelRef:
    facts, target = dtypes.info(weights.data_type), arch.generation.target
    cell, clips = CELLS[rnn.cell_mode], clip_mode(rnn)
    form = f"{cell.removesuffix('Cell').lower()}_{facts.short_name}_{tile.form}_c{clips}"
    own: Macros = () if saves is None else (("SAVES", int(saves)),)
    suffix = "" if saves is None else f"_saves{int(saves)}"
    return KernelRef(
        name=f"{tile.kernel}_{form}{suffix}_{target_label(target)}",
        source=f"rnn/{tile.kernel}.cu",
        target=target,
        parameters=(("TYPE", facts.c_type), *tile.macros, ("CELL", cell), ("CLIPS", clips), *own),
    )
