"""The recurrence of a layer in one launch, which holds the recurrent weights on chip."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import i32, macros, target_label
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rnn.layers import BackwardLayer, ForwardLayer
from lowdnn.engines.rnn.persistent_tile import (
    KEPT_REGISTERS,
    MOST_CHUNKS,
    PersistentTile,
    blocks,
    blocks_of_group,
    groups,
)
from lowdnn.engines.rnn.step_kernels import clip_mode
from lowdnn.engines.rnn.stepwise import CELLS, layer_fields
from lowdnn.plan import KernelRef, Launch, MathUnit, Struct, Work, WorkspacePointer


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
    """A ``Recurrence``."""

    arch: ArchSpec
    tile: PersistentTile

    reads_transposed = True

    def forward(self, parts: PlanParts, layer: ForwardLayer) -> None:
        rnn, tile, weights = layer.rnn, self.tile, layer.recurrent
        teams = rnn.directions * groups(rnn, tile.columns)
        exchange = parts.reserve(teams * 2 * tile.chunks * tile.chunk_bytes)
        arrivals = parts.reserve(teams * MOST_CHUNKS * 4)
        fields = layer_fields(layer, rnn.hidden_size, weights, layer.output, layer.output)
        launch = Launch(
            kernel=parts.kernel(self._kernel(layer)),
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
            work=self._work(layer),
            cooperative=True,
        )
        parts.launches.append(launch)

    def backward(self, parts: PlanParts, layer: BackwardLayer) -> None:
        """Is never called: ``RnnPersistent`` takes the forward operation alone."""
        raise NotImplementedError

    def _work(self, layer: ForwardLayer) -> Work:
        rnn = layer.rnn
        rows = rnn.directions * rnn.max_length * rnn.batch_size * rnn.hidden_size
        return Work(
            flops=2 * rows * rnn.gates * rnn.hidden_size,
            bytes=rows * (2 * rnn.gates + 1) * layer.recurrent.element_bytes,
            unit=MathUnit.WGMMA_F16,
            busy_s=rnn.max_length * self.tile.step_s,
        )

    def _kernel(self, layer: ForwardLayer) -> KernelRef:
        tile, facts = self.tile, dtypes.info(layer.recurrent.data_type)
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
