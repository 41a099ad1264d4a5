"""The recurrence of a layer as one launch for each step on wgmma; kernels: ``rnn_step_{forward,backward}_wgmma``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import ceil_div, is_dependent, macros, target_label
from lowdnn.engines.model.occupancy import shared_room
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rnn.array import Array
from lowdnn.engines.rnn.layers import BackwardLayer, ForwardLayer
from lowdnn.engines.rnn.step_kernels import at_step, clip_mode
from lowdnn.engines.rnn.step_wgmma_tile import CHUNK, UNITS, WgmmaStepProblem, WgmmaStepTile, busy_s
from lowdnn.engines.rnn.stepwise import CELLS, backward_fields, layer_fields
from lowdnn.enums import DataType
from lowdnn.ops.rnn import Rnn
from lowdnn.plan import Argument, KernelRef, Launch, MathUnit, Struct, TensorMap, Work
from lowdnn.tensor_map import TensorMapDataType, TensorMapL2Promotion, TensorMapSwizzle, TiledMap

_FORWARD, _BACKWARD = "rnn_step_forward_wgmma", "rnn_step_backward_wgmma"
_MAP_TYPES = {DataType.HALF: TensorMapDataType.FLOAT16, DataType.BFLOAT16: TensorMapDataType.BFLOAT16}


@dataclass(frozen=True)
class Params:
    """Macros of both kernels."""

    TYPE: str
    WARPGROUPS: int
    WARPGROUP_COLUMNS: int
    DEPTH: int
    STAGES: int
    RESIDENT: int
    CELL: str
    CLIPS: int


@dataclass(frozen=True)
class StepwiseWgmma:
    """A ``Recurrence``. columns, depth: of tiles (``WgmmaStepTile``), or 0 for those that are the fastest."""

    arch: ArchSpec
    columns: int = 0
    depth: int = 0

    reads_transposed = False

    def forward(self, parts: PlanParts, layer: ForwardLayer) -> None:
        rnn, tile = layer.rnn, self.forward_tile(layer.rnn)
        weights = layer.recurrent
        by_gate = weights.split(1, rnn.hidden_size)
        first = layer.hx or weights.part(0, (rnn.directions, 1, weights.dims[2]), (weights.strides[0], 8, 1))
        maps = (
            _map(by_gate, (CHUNK, UNITS, 1, 1)),
            _map(layer.output, (CHUNK, tile.columns, 1, 1)),
            _map(first, (CHUNK, tile.columns, 1)),
        )
        fields = layer_fields(layer, rnn.hidden_size, weights, layer.output, layer.output)
        flags = (("SAVES", int(layer.gates is not None)),)
        launch = self._launch(parts, _FORWARD, rnn, weights, tile, self._forward(rnn), (*maps, Struct(fields)), flags)
        parts.launches += [at_step(launch, step) for step in range(rnn.max_length)]

    def backward(self, parts: PlanParts, layer: BackwardLayer) -> None:
        rnn, weights, hidden = layer.rnn, layer.recurrent, layer.rnn.hidden_size
        tile = self.backward_tile(rnn)
        maps = (_map(weights.permuted(0, 2, 1), (UNITS, CHUNK, 1)), _map(layer.dgates, (CHUNK, tile.columns, 1, 1)))
        first, second = (weights.columns(0, 2 * hidden), (hidden, 3 * hidden)) if rnn.is_gru else (weights, (0, 0))
        fields = backward_fields(layer, first, layer.dgates, second)
        launch = self._launch(parts, _BACKWARD, rnn, weights, tile, self._backward(rnn), (*maps, Struct(fields)))
        steps = rnn.max_length + (layer.dhx is not None)
        parts.launches += [at_step(launch, step) for step in range(steps)]

    def forward_tile(self, rnn: Rnn) -> WgmmaStepTile:
        return self._forward(rnn).best_tile(self.arch, self.columns, self.depth)

    def backward_tile(self, rnn: Rnn) -> WgmmaStepTile:
        return self._backward(rnn).best_tile(self.arch, self.columns, self.depth)

    @staticmethod
    def _forward(rnn: Rnn) -> WgmmaStepProblem:
        hidden = rnn.hidden_size
        return WgmmaStepProblem(rnn.gates, hidden, hidden, rnn.batch_size, rnn.directions)

    @staticmethod
    def _backward(rnn: Rnn) -> WgmmaStepProblem:
        hidden = rnn.hidden_size
        return WgmmaStepProblem(1, hidden, rnn.gates * hidden, rnn.batch_size, rnn.directions)

    def _launch(
        self,
        parts: PlanParts,
        name: str,
        rnn: Rnn,
        weights: Array,
        tile: WgmmaStepTile,
        problem: WgmmaStepProblem,
        arguments: Sequence[Argument],
        flags: tuple[tuple[str, int], ...] = (),
    ) -> Launch:
        """The launch without a step."""
        facts, target = dtypes.info(weights.data_type), self.arch.generation.target
        params = Params(
            TYPE=facts.c_type,
            WARPGROUPS=tile.warpgroups,
            WARPGROUP_COLUMNS=tile.columns // tile.warpgroups,
            DEPTH=tile.depth,
            STAGES=tile.ring,
            RESIDENT=tile.resident,
            CELL=CELLS[rnn.cell_mode],
            CLIPS=clip_mode(rnn),
        )
        cell = params.CELL.removesuffix("Cell").lower()
        form = f"{tile.columns}x{tile.depth}_r{tile.ring}o{tile.resident}"
        flag = "".join(f"_{key.lower()}{value}" for key, value in flags)
        kernel = KernelRef(
            name=f"{name}_{cell}_{facts.short_name}_{form}_c{params.CLIPS}{flag}_{target_label(target)}",
            source=f"rnn/{name}.cu",
            target=target,
            parameters=(*macros(params), *flags),
        )
        grid = (ceil_div(problem.units, UNITS) * tile.depth, ceil_div(rnn.batch_size, tile.columns))
        row_bytes = 2 * problem.units * rnn.blocks * rnn.batch_size * rnn.directions * weights.element_bytes
        return Launch(
            kernel=parts.kernel(kernel),
            grid=(*grid, rnn.directions),
            block=(tile.threads, 1, 1),
            arguments=(Struct(tuple(arguments)),),
            shared_bytes=max(problem.shared_bytes(tile), shared_room(self.arch, tile.resident + 1) + 1),
            work=Work(problem.flops, row_bytes, MathUnit.WGMMA_F16, busy_s(problem, tile, self.arch)),
            cluster=(tile.depth, 1, 1),
            overlaps_previous=is_dependent(self.arch),
        )


def has_map(array: Array) -> bool:
    """Whether a tensor map can describe ``array``, whose last axis is contiguous."""
    return array.is_aligned(CHUNK // 8, *array.strides[:-1])


def _map(array: Array, box: tuple[int, ...]) -> TensorMap:
    """The map of ``array`` with its axes from the last one on, but that of direction outermost.

    An array over steps (D, T, B, elements) has the coordinates (element, sequence, step, direction).
    """
    size = array.element_bytes
    strides = tuple(stride if extent > 1 else CHUNK for extent, stride in zip(array.dims, array.strides, strict=True))
    layout = TiledMap(
        _MAP_TYPES[array.data_type],
        address=0,
        dims=tuple(reversed(array.dims)),
        strides_bytes=tuple(stride * size for stride in reversed(strides[:-1])),
        box=box,
        element_strides=(1,) * len(box),
        swizzle=TensorMapSwizzle.BYTES_128,
        l2_promotion=TensorMapL2Promotion.BYTES_128,
    )
    return TensorMap(array.pointer, layout)
