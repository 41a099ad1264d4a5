"""``lrn``: cross-channel local response normalisation and its gradient, for any float types and strides.

It is bound by memory: each input is read once, and each output written once. A thread has a run of neighbouring
channels, so that it loads once what their windows share (``lrn.cuh``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.access import contiguous_elements
from lowdnn.engines.base import Anchors, Choices, Knob
from lowdnn.engines.indices import counter_type
from lowdnn.engines.launch import (
    MAX_EXTENT,
    MAX_GRID_X,
    bytes_of,
    ceil_div,
    conversion_target,
    divider,
    fma_unit,
    i64,
    macros,
    target_label,
)
from lowdnn.engines.limits import alone
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rows.kernel import number
from lowdnn.engines.single_operation import SingleOperation
from lowdnn.enums import KnobType
from lowdnn.ops.base import inputs_of, outputs_of
from lowdnn.ops.lrn import Lrn, LrnBackward, LrnForward
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, KernelRef, Launch, Scalar, Struct, TensorPointer, Work

#: Threads of a block.
_THREADS = 128
#: Values of MULTIPLY: channels of a run.
_RUNS = (1, 2, 4, 8, 16)
#: Channels of a run by default at most; more than 8 take 128 registers of a thread with the largest window.
_MOST_CHANNELS = 8
#: Digits of a group's number: the axes of tensors of the highest rank.
_DIGITS = 5


@dataclass(frozen=True)
class Params:
    """Compile-time parameters that both kernels have; field names are their macros. Macros of types and of widths of
    accesses begin with the ports' names."""

    COMPUTE: str
    WINDOW: int
    RUN: int
    THREADS: int
    CHANNEL_AXIS: int
    INDEX: str


@dataclass(frozen=True)
class _Problem:
    """An operation, with the order of its axes and the sizes of its kernel."""

    operation: Lrn

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return inputs_of(self.operation) | outputs_of(self.operation)

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The axes of x, outermost in memory first."""
        x = self.operation.x
        return tuple(sorted(range(x.rank), key=lambda axis: -x.strides[axis]))

    def radices(self, run: int) -> tuple[int, ...]:
        """Extents along ``axes``, with channels in runs."""
        dims = self.operation.x.dims
        return tuple(ceil_div(dims[axis], run) if axis == 1 else dims[axis] for axis in self.axes)

    def knob(self, arch: ArchSpec) -> Knob:
        """The knob for channels of a run; its default is the most channels that leave every multiprocessor full."""
        threads = arch.sm_count * arch.threads_per_sm
        values = tuple(run for run in _RUNS if run < 2 * self.operation.x.dims[1]) or _RUNS[:1]
        full = [run for run in values if run <= _MOST_CHANNELS and prod(self.radices(run)) >= threads]
        return Knob("channels", KnobType.MULTIPLY, values, max(full, default=values[0]), "channels of a thread")

    def limit(self) -> str:
        extent, blocks = max(self.operation.x.dims), ceil_div(prod(self.radices(1)), _THREADS)
        if extent > MAX_EXTENT:
            return f"x.dims: expected at most {MAX_EXTENT} along an axis, got {extent}"
        return f"x.dims: expected at most {MAX_GRID_X} blocks, got {blocks}" if blocks > MAX_GRID_X else ""

    def kernel(self, name: str, run: int, arch: ArchSpec) -> KernelRef:
        facts = {port: dtypes.info(tensor.data_type) for port, tensor in self.tensors.items()}
        widths = {port: _width(tensor, run) for port, tensor in self.tensors.items()}
        target = conversion_target((tensor.data_type for tensor in self.tensors.values()), arch)
        params = Params(
            COMPUTE=dtypes.info(self.operation.compute_type).c_type,
            WINDOW=self.operation.lrn_n,
            RUN=run,
            THREADS=_THREADS,
            CHANNEL_AXIS=_DIGITS - len(self.axes) + self.axes.index(1),
            INDEX=counter_type(prod(self.radices(run))),
        )
        types = "_".join(found.short_name for found in facts.values())
        shape = f"n{params.WINDOW}r{run}a{params.CHANNEL_AXIS}w{'x'.join(map(str, widths.values()))}_{params.INDEX}"
        return KernelRef(
            name=f"{name}_{types}_{shape}_{target_label(target)}",
            source=f"lrn/{name}.cu",
            target=target,
            parameters=(
                *((port.upper(), found.c_type) for port, found in facts.items()),
                *((f"{port.upper()}_WIDTH", width) for port, width in widths.items()),
                *macros(params),
            ),
        )

    def launch(self, run: int) -> Launch:
        operation, radices = self.operation, self.radices(run)
        tensors, compute_type = tuple(self.tensors.values()), operation.compute_type
        scale = operation.lrn_alpha / operation.lrn_n
        slope = (2 * scale * operation.lrn_beta,) if isinstance(operation, LrnBackward) else ()
        factors = (scale, -operation.lrn_beta, operation.lrn_k)
        digits = (1,) * (_DIGITS - len(radices)) + radices
        arguments: tuple[Argument, ...] = (
            *(TensorPointer(tensor.uid) for tensor in tensors),
            *(field for tensor in tensors for field in self._axis_strides(tensor, run)),
            *(number(factor, compute_type) for factor in slope),
            *i64((prod(radices), operation.x.dims[1])),
            *(number(factor, compute_type) for factor in factors),
            *(field for radix in digits for field in divider(radix)),
        )
        return Launch(
            kernel=0,
            grid=(ceil_div(prod(radices), _THREADS), 1, 1),
            block=(_THREADS, 1, 1),
            arguments=(Struct(arguments),),
            work=Work(flops=operation.flops, bytes=bytes_of(tensors), unit=fma_unit(compute_type)),
        )

    def _axis_strides(self, tensor: Tensor, run: int) -> tuple[Scalar, ...]:
        """The fields of ``AxisStrides``: the strides of the digits, and that of one channel."""
        strides = [tensor.strides[axis] * (run if axis == 1 else 1) for axis in self.axes]
        return i64((*(0,) * (_DIGITS - len(strides)), *strides, tensor.strides[1]))


class LrnEngine(SingleOperation[Lrn]):
    """Local response normalisation, as the module's docstring says."""

    name = "lrn"
    index = 46
    anchors: Anchors = (LrnForward, LrnBackward)
    limits = alone(*anchors)
    expects = "one LrnForward or LrnBackward"

    def limit(self, operation: Lrn, arch: ArchSpec) -> str:
        """Limits the extents and the number of blocks."""
        return _Problem(operation).limit()

    def knobs_of(self, operation: Lrn, arch: ArchSpec) -> tuple[Knob, ...]:
        """MULTIPLY: the channels of a thread."""
        return (_Problem(operation).knob(arch),)

    def launches(self, operation: Lrn, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch."""
        problem, run = _Problem(operation), chosen[KnobType.MULTIPLY]
        name = "lrn_backward" if isinstance(operation, LrnBackward) else "lrn_forward"
        return PlanParts([(problem.kernel(name, run, arch), problem.launch(run))])


def _width(tensor: Tensor, run: int) -> int:
    """Elements of an access along the channels; 0 if they are strided."""
    elements = min(run, contiguous_elements(tensor, tensor.strides, 1))
    while elements > 1 and tensor.dims[1] % elements:
        elements //= 2
    return elements if tensor.strides[1] == 1 else 0
