"""The recurrence of a layer backward in one launch, which holds the recurrent weights on chip."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import i32, macros, target_label
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rnn.layers import BackwardLayer
from lowdnn.engines.rnn.persistent_backward_tile import (
    KEPT_REGISTERS,
    BackwardTile,
    blocks,
    clusters_of_group,
    groups,
)
from lowdnn.engines.rnn.persistent_tile import MOST_CHUNKS
from lowdnn.engines.rnn.step_kernels import clip_mode
from lowdnn.engines.rnn.stepwise import CELLS, backward_fields
from lowdnn.plan import KernelRef, Launch, MathUnit, Struct, Work, WorkspacePointer

#: Steps whose gradients the kernel keeps.
_HISTORY = 3


@dataclass(frozen=True)
class Params:
    """Macros of ``rnn_persistent_backward``."""

    TYPE: str
    COLUMNS: int
    PARTS: int
    CHUNKS: int
    CLUSTER: int
    WARPGROUPS: int
    REGISTER_CHUNKS: int
    SLOTS: int
    REGISTERS: int
    KEPT_REGISTERS: int
    CELL: str
    CLIPS: int


def add_persistent_backward(parts: PlanParts, layer: BackwardLayer, tile: BackwardTile, arch: ArchSpec) -> None:
    """Adds the launch of ``rnn_persistent_backward`` for a layer."""
    rnn = layer.rnn
    teams = rnn.directions * groups(rnn, tile) * tile.parts
    exchange = parts.reserve(teams * _HISTORY * tile.cluster * tile.chunks * tile.chunk_bytes)
    arrivals = parts.reserve(teams * MOST_CHUNKS * 4)
    fields = backward_fields(layer, layer.recurrent, layer.dgates)
    launch = Launch(
        kernel=parts.kernel(_kernel(layer, tile, arch)),
        grid=(blocks(rnn, tile), 1, 1),
        block=(tile.threads, 1, 1),
        arguments=(
            Struct(
                (
                    Struct(fields),
                    WorkspacePointer(exchange),
                    WorkspacePointer(arrivals),
                    *i32((groups(rnn, tile), clusters_of_group(rnn, tile))),
                )
            ),
        ),
        shared_bytes=tile.shared_bytes,
        work=_work(layer, tile),
        cluster=(tile.cluster, 1, 1),
        cooperative=True,
    )
    parts.launches.append(launch)


def _work(layer: BackwardLayer, tile: BackwardTile) -> Work:
    rnn = layer.rnn
    rows = rnn.directions * rnn.max_length * rnn.batch_size * rnn.hidden_size
    return Work(
        flops=2 * rows * rnn.gates * rnn.hidden_size,
        bytes=rows * (2 * rnn.blocks + 2) * layer.recurrent.element_bytes,
        unit=MathUnit.WGMMA_F16,
        busy_s=rnn.max_length * tile.step_s,
    )


def _kernel(layer: BackwardLayer, tile: BackwardTile, arch: ArchSpec) -> KernelRef:
    facts, target = dtypes.info(layer.recurrent.data_type), arch.generation.target
    params = Params(
        TYPE=facts.c_type,
        COLUMNS=tile.columns,
        PARTS=tile.parts,
        CHUNKS=tile.chunks,
        CLUSTER=tile.cluster,
        WARPGROUPS=tile.warpgroups,
        REGISTER_CHUNKS=tile.register_chunks,
        SLOTS=tile.slots,
        REGISTERS=tile.taken_registers,
        KEPT_REGISTERS=KEPT_REGISTERS,
        CELL=CELLS[layer.rnn.cell_mode],
        CLIPS=clip_mode(layer.rnn),
    )
    cell = params.CELL.removesuffix("Cell").lower()
    form = f"{tile.columns}p{tile.parts}x{tile.chunks}x{tile.cluster}_w{tile.warpgroups}r{tile.register_chunks}"
    return KernelRef(
        name=f"rnn_persistent_backward_{cell}_{facts.short_name}_{form}s{tile.slots}_c{params.CLIPS}"
        f"_{target_label(target)}",
        source="rnn/rnn_persistent_backward.cu",
        target=target,
        parameters=macros(params),
    )
