"""The recurrence of a layer in one launch, which holds the recurrent weights on chip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import i32, macros, target_label
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rnn.layers import BackwardLayer, ForwardLayer
from lowdnn.engines.rnn.persistent_backward import add_persistent_backward
from lowdnn.engines.rnn.persistent_backward_tile import backward_tiles
from lowdnn.engines.rnn.persistent_tile import (
    KEPT_REGISTERS,
    MOST_CHUNKS,
    PersistentTile,
    blocks,
    blocks_of_group,
    groups,
    tiles,
)
from lowdnn.engines.rnn.step_kernels import clip_mode
from lowdnn.engines.rnn.stepwise import CELLS, layer_fields
from lowdnn.plan import KernelRef, Launch, MathUnit, Struct, Work, WorkspacePointer
from lowdnn.status import BadParamError

TileT = TypeVar("TileT")


@dataclass(frozen=True)
class Params:
    """Macros of ``rnn_persistent_forward``."""

    TYPE: str
    COLUMNS: int
    CHUNKS: int
    WARPGROUPS: int
    REGISTER_CHUNKS: int
    REGISTERS: int
    KEPT_REGISTERS: int
    CELL: str
    CLIPS: int
    SAVES: int


@dataclass(frozen=True)
class Persistent:
    """A ``Recurrence``. columns, cluster: of the tiles, or 0 for those of the fastest one."""

    arch: ArchSpec
    columns: int = 0
    cluster: int = 0

    reads_transposed = True

    def forward(self, parts: PlanParts, layer: ForwardLayer) -> None:
        rnn, weights = layer.rnn, layer.recurrent
        tile = self._first(tiles(rnn, self.arch, self.columns))
        teams = rnn.directions * groups(rnn, tile.columns)
        exchange = parts.reserve(teams * 2 * tile.chunks * tile.chunk_bytes)
        arrivals = parts.reserve(teams * MOST_CHUNKS * 4)
        fields = layer_fields(layer, rnn.hidden_size, weights, layer.output, layer.output)
        launch = Launch(
            kernel=parts.kernel(self._kernel(layer, tile)),
            grid=(blocks(rnn, tile.columns), 1, 1),
            block=(tile.threads, 1, 1),
            arguments=(
                Struct(
                    (
                        Struct(fields),
                        WorkspacePointer(exchange),
                        WorkspacePointer(arrivals),
                        *i32((groups(rnn, tile.columns), blocks_of_group(rnn))),
                    )
                ),
            ),
            shared_bytes=tile.shared_bytes,
            work=self._work(layer, tile),
            cooperative=True,
        )
        parts.launches.append(launch)

    def backward(self, parts: PlanParts, layer: BackwardLayer) -> None:
        tile = self._first(backward_tiles(layer.rnn, self.arch, self.columns, self.cluster))
        add_persistent_backward(parts, layer, tile, self.arch)

    def _first(self, tiles: Iterator[TileT]) -> TileT:
        """The fastest tile; raises BadParamError where none fits."""
        tile = next(tiles, None)
        if tile is None:
            got = f"{self.columns} columns and clusters of {self.cluster}"
            raise BadParamError.at("rnn_persistent.knob_choices", expected="a tile that fits on chip", got=got)
        return tile

    def _work(self, layer: ForwardLayer, tile: PersistentTile) -> Work:
        rnn = layer.rnn
        rows = rnn.directions * rnn.max_length * rnn.batch_size * rnn.hidden_size
        return Work(
            flops=2 * rows * rnn.gates * rnn.hidden_size,
            bytes=rows * (2 * rnn.gates + 1) * layer.recurrent.element_bytes,
            unit=MathUnit.WGMMA_F16,
            busy_s=rnn.max_length * tile.step_s,
        )

    def _kernel(self, layer: ForwardLayer, tile: PersistentTile) -> KernelRef:
        facts = dtypes.info(layer.recurrent.data_type)
        params = Params(
            TYPE=facts.c_type,
            COLUMNS=tile.columns,
            CHUNKS=tile.chunks,
            WARPGROUPS=tile.warpgroups,
            REGISTER_CHUNKS=tile.register_chunks,
            REGISTERS=tile.taken_registers,
            KEPT_REGISTERS=KEPT_REGISTERS,
            CELL=CELLS[layer.rnn.cell_mode],
            CLIPS=clip_mode(layer.rnn),
            SAVES=int(layer.gates is not None),
        )
        target = self.arch.generation.target
        cell = params.CELL.removesuffix("Cell").lower()
        form = f"{tile.columns}x{tile.chunks}_w{tile.warpgroups}r{tile.register_chunks}"
        flags = f"c{params.CLIPS}_saves{params.SAVES}"
        return KernelRef(
            name=f"rnn_persistent_forward_{cell}_{facts.short_name}_{form}_{flags}_{target_label(target)}",
            source="rnn/rnn_persistent_forward.cu",
            target=target,
            parameters=macros(params),
        )
