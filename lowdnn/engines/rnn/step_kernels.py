"""Kernels and launches of a recurrent step: ``rnn_step_forward`` and ``rnn_step_backward``.

A layer is a list of phases, the kernels of a step, each of which multiplies rows with weights and hands what comes out
to a cell. All launches of a phase share one argument, and differ in the number of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lowdnn import dtypes
from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import (
    ACCESS_BYTES,
    ceil_div,
    dependent_target,
    i32,
    is_dependent,
    macros,
    target_label,
)
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rnn.array import Array
from lowdnn.engines.rnn.step_tile import StepProblem, busy_s
from lowdnn.enums import DataType
from lowdnn.ops.rnn import Rnn
from lowdnn.plan import Argument, KernelRef, Launch, Struct, Work


@dataclass(frozen=True)
class Params:
    """Macros of both kernels."""

    TYPE: str
    UNITS: int
    COLUMNS: int
    WARPS: int
    CLUSTER: int
    IS_WHOLE: int
    TENSOR_CORES: int
    CELL: str
    CLIPS: int


@dataclass(frozen=True)
class Phase:
    """A kernel of a step.

    kernel: ``rnn_step_forward`` or ``rnn_step_backward``.  cell: the type of its cell.  gates: rows of weights of a
    unit.  units: units of a sequence.  depths: extents of k, one for each part of the product.  operands: the arrays
    that are multiplied.  fields: arguments for the fields of the kernel's Params.  flags: further macros.
    """

    kernel: str
    cell: str
    gates: int
    units: int
    depths: tuple[int, ...]
    operands: Sequence[Array | None]
    fields: tuple[Argument, ...]
    flags: tuple[tuple[str, int], ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether lines of all operands are whole pieces, at multiples of their size."""
        arrays = [array for array in self.operands if array is not None]
        piece = ACCESS_BYTES // arrays[0].element_bytes
        are_whole = all(depth % piece == 0 for depth in self.depths)
        return are_whole and all(array.is_aligned(piece, *array.strides[:-1]) for array in arrays)

    @property
    def data_type(self) -> DataType:
        return next(array.data_type for array in self.operands if array is not None)


@dataclass(frozen=True)
class StepLauncher:
    """Adds the launches of phases on ``arch``.

    rows, columns, cluster: the tiles' sizes (``StepTile``), or 0 for those that are the fastest for a phase.
    """

    arch: ArchSpec
    rnn: Rnn
    rows: int = 0
    columns: int = 0
    cluster: int = 0

    def add(self, parts: PlanParts, phases: Sequence[Phase], steps: int) -> None:
        """``steps`` steps of all phases."""
        made = [self._made(parts, phase) for phase in phases]
        parts.launches += [at_step(launch, step) for step in range(steps) for launch in made]

    def add_beyond(self, parts: PlanParts, phase: Phase) -> None:
        """The launch of ``phase`` behind its last step."""
        parts.launches.append(at_step(self._made(parts, phase), self.rnn.max_length))

    def _made(self, parts: PlanParts, phase: Phase) -> Launch:
        """The launch without a step, of a kernel of ``parts``."""
        problem = self._problem(phase)
        tile = problem.best_tile(self.arch, self.rows, self.columns, self.cluster)
        units = tile.units(phase.gates)
        rnn, facts, target = self.rnn, dtypes.info(phase.data_type), dependent_target(self.arch)
        params = Params(
            TYPE=facts.c_type,
            UNITS=units,
            COLUMNS=tile.columns,
            WARPS=tile.warps,
            CLUSTER=tile.cluster,
            IS_WHOLE=int(phase.is_whole),
            TENSOR_CORES=int(problem.has_tensor_cores),
            CELL=phase.cell,
            CLIPS=clip_mode(rnn),
        )
        flags = "".join(f"_{name.lower()}{value}" for name, value in phase.flags)
        cell = phase.cell.removesuffix("Cell").lower()
        unit = "mma" if problem.has_tensor_cores else "simt"
        form = f"{units}x{tile.columns}x{tile.cluster}_w{tile.warps}_a{params.IS_WHOLE}c{params.CLIPS}{flags}"
        kernel = KernelRef(
            name=f"{phase.kernel}_{cell}_{facts.short_name}_{unit}_{form}_{target_label(target)}",
            source=f"rnn/{phase.kernel}.cu",
            target=target,
            parameters=(*macros(params), *phase.flags),
        )
        return Launch(
            kernel=parts.kernel(kernel),
            grid=(ceil_div(phase.units, units) * tile.cluster, ceil_div(rnn.batch_size, tile.columns), rnn.directions),
            block=(tile.warps * WARP_SIZE, 1, 1),
            arguments=(Struct(phase.fields),),
            shared_bytes=problem.shared_bytes(tile),
            work=Work(problem.flops, problem.row_bytes, problem.unit, busy_s(problem, tile, self.arch)),
            cluster=(tile.cluster, 1, 1),
            overlaps_previous=is_dependent(self.arch),
        )

    def _problem(self, phase: Phase) -> StepProblem:
        return StepProblem(
            data_type=phase.data_type,
            rows_per_unit=phase.gates,
            units=phase.units,
            depth=sum(phase.depths),
            batch=self.rnn.batch_size,
            directions=self.rnn.directions,
            uses_tf32=self.rnn.uses_tf32,
        )


def clip_mode(rnn: Rnn) -> int:
    """The macro CLIPS."""
    return 0 if rnn.clip is None else 1 if rnn.clip.propagates_nan else 2


def at_step(launch: Launch, step: int) -> Launch:
    """``launch`` with the number of its step; the other argument is the same object for all steps."""
    return replace(launch, arguments=(*launch.arguments, *i32((step,))))
