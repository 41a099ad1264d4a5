"""Forward pass and data gradient over lines: the host side of ``depthwise_line_targets.cuh``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from lowdnn.codegen.functor import Functor, generate
from lowdnn.codegen.space import IndexSpace
from lowdnn.engines.conv.depthwise.axes import Axis
from lowdnn.engines.conv.depthwise.geometry import DataPass
from lowdnn.engines.conv.depthwise.line_axes import LineGeometry, class_room
from lowdnn.engines.launch import bytes_of, ceil_div, divider, i32
from lowdnn.enums import DataType
from lowdnn.plan import MathUnit, Struct, Work

#: Most targets that the epilogue gets at a time.
MAX_RUN = 8

#: Instructions of the epilogue for a run of targets, besides those of each target.
_RUN = 45
#: Instructions of each target of a run.
_TARGET = 4


@dataclass(frozen=True)
class BlockShape:
    """A block's targets: ``targets`` of a line, of ``lanes`` x ``channels`` channels and ``batches`` batches.

    lanes: channels in neighbouring threads; if it is more than 1, ``channels`` is 1.
    """

    lanes: int
    targets: int
    channels: int
    batches: int

    @property
    def all_targets(self) -> int:
        return self.lanes * self.targets * self.channels * self.batches


@dataclass(frozen=True)
class LinePass(DataPass):
    """A pass from lines of sources to lines of targets."""

    lines: LineGeometry

    @cached_property
    def axis(self) -> Axis:
        axis = self.lines.axis
        return axis.backward() if self.is_backward else axis.forward()

    @cached_property
    def space(self) -> IndexSpace:
        return self.lines.space(self.geometry.dag)

    @cached_property
    def moved_bytes(self) -> int:
        return bytes_of((self.source, *self.geometry.dag.loads, *self.geometry.dag.stores))

    @property
    def launch_work(self) -> Work:
        geometry = self.geometry
        return Work(
            flops=2 * geometry.operation.response.element_count * geometry.tap_count,
            bytes=self.moved_bytes + bytes_of((geometry.operation.filter,)),
            unit=MathUnit.FMA_F32,
        )

    def run(self, lanes: int) -> int:
        """Targets that the epilogue gets at a time."""
        return 1 if lanes == 1 and self.axis.target_step > 1 else MAX_RUN

    def digits(self, shape: BlockShape) -> tuple[int, int, int, int]:
        """The radices of a block's number, the fastest first."""
        tiles = ceil_div(self.axis.count, shape.targets)
        channels = ceil_div(self.geometry.channels, shape.lanes * shape.channels)
        return len(self.axis.classes), tiles, channels, ceil_div(self.lines.batch_count, shape.batches)

    def epilogue_instructions(self, shape: BlockShape, threads: int) -> int:
        """Instructions of a thread in the epilogue."""
        run = self.run(shape.lanes)
        return ceil_div(shape.all_targets // run, threads) * (_RUN + _TARGET * run)

    def targets(self, shape: BlockShape, functor: Functor) -> Struct:
        """The kernel's ``LineTargets``."""
        return Struct(
            (
                self.axis.struct(class_room(self.axis)),
                self.lines.rows(shape.channels, shape.batches),
                Struct(divider(shape.targets * shape.lanes // self.run(shape.lanes))),
                *i32((shape.targets,)),
                *(Struct(divider(radix)) for radix in self.digits(shape)),
                functor.arguments,
            )
        )

    def functor(self, lanes: int) -> Functor:
        """The epilogue's functor, along the channels or along the line."""
        return generate(
            replace(self.geometry.dag, result=None),
            accumulator=DataType.FLOAT,
            vector_axis=1 if lanes > 1 else self.space.rank - 1,
            space=self.space,
        )
