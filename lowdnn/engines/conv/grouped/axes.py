"""The spatial axes of a convolution as correlations: the inputs that each output sums, tap by tap, in either direction.

Along one axis, output ``residue + i * output_step`` sums the inputs ``i * input_step + offset`` of the taps of its
residue. Forward every tap serves every output (output_step 1, input_step the stride). Backward in the data a stride
splits the outputs into residues, and every tap reaches exactly one of them (output_step the stride, input_step 1), so
that nothing is multiplied with the zeros of an upsampled tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from lowdnn.engines.launch import ceil_div
from lowdnn.enums import ConvolutionMode
from lowdnn.ops.convolution import Convolution, ConvolutionOperation

#: Spatial axes of a kernel; a convolution with fewer gets axes of extent 1 in front.
AXES = 3
#: Most taps of a filter, with those that fill up steps.
MAX_TAPS = 128


@dataclass(frozen=True)
class Tap:
    """A tap of a residue. offset: offset of the input that it reads. index: its index in the filter."""

    offset: int
    index: int


@dataclass(frozen=True)
class Axis:
    """See the module's docstring. residues: the taps of each residue."""

    inputs: int
    outputs: int
    input_step: int
    output_step: int
    residues: tuple[tuple[Tap, ...], ...]

    @cached_property
    def steps(self) -> int:
        """Outputs of one residue."""
        return ceil_div(self.outputs, self.output_step)

    @cached_property
    def lowest(self) -> int:
        """The least offset of a tap."""
        return min((tap.offset for taps in self.residues for tap in taps), default=0)

    @cached_property
    def reach(self) -> int:
        """Positions from the least to the greatest offset."""
        return max((tap.offset for taps in self.residues for tap in taps), default=0) - self.lowest

    @property
    def farthest(self) -> int:
        """The greatest distance of an input from the origin, padding included."""
        return self.outputs * self.input_step + abs(self.lowest) + self.reach

    def box(self, steps: int) -> int:
        """Inputs that ``steps`` neighbouring outputs of every residue read."""
        return (steps - 1) * self.input_step + self.reach + 1


@dataclass(frozen=True)
class OutputClass:
    """The outputs of one residue in every axis, and their taps: (offset in each axis, index in the filter)."""

    residue: tuple[int, ...]
    taps: tuple[tuple[tuple[int, ...], int], ...]


def taps_problem(operation: ConvolutionOperation) -> str:
    """Why the filters have too many taps for the kernels, which are told each of them, or an empty string."""
    taps, port = prod(operation.filter.dims[2:]), "dw" if operation.output is operation.filter else "filter"
    return f"{port}.dims: expected at most {MAX_TAPS} taps, got {taps}" if taps > MAX_TAPS else ""


_WHOLE = Axis(1, 1, 1, 1, ((Tap(0, 0),),))


def forward_axes(operation: ConvolutionOperation) -> tuple[Axis, ...]:
    """The axes from the image to the response."""
    convolution = operation.convolution
    axes = []
    for axis, taps in enumerate(operation.filter.dims[2:]):
        stride = convolution.strides[axis]
        offsets = tuple(
            Tap(tap * convolution.dilations[axis] - convolution.pre_paddings[axis], _index(convolution, tap, taps))
            for tap in range(taps)
        )
        axes.append(Axis(operation.image.dims[2 + axis], operation.response.dims[2 + axis], stride, 1, (offsets,)))
    return _three(axes)


def backward_axes(operation: ConvolutionOperation) -> tuple[Axis, ...]:
    """The axes from the response to the image."""
    convolution = operation.convolution
    axes = []
    for axis, taps in enumerate(operation.filter.dims[2:]):
        stride, dilation = convolution.strides[axis], convolution.dilations[axis]
        residues: list[list[Tap]] = [[] for _ in range(stride)]
        for tap in range(taps):
            # Image position i reads response o if i = o * stride + distance.
            distance = tap * dilation - convolution.pre_paddings[axis]
            residue = distance % stride
            residues[residue].append(Tap((residue - distance) // stride, _index(convolution, tap, taps)))
        axes.append(
            Axis(operation.response.dims[2 + axis], operation.image.dims[2 + axis], 1, stride, _frozen(residues))
        )
    return _three(axes)


def output_classes(axes: tuple[Axis, ...], filter_taps: tuple[int, ...]) -> tuple[OutputClass, ...]:
    """Every combination of residues."""
    extents = (*(1,) * (AXES - len(filter_taps)), *filter_taps)
    pitches = [prod(extents[axis + 1 :]) for axis in range(AXES)]
    classes = []
    for residue in product(*(range(len(axis.residues)) for axis in axes)):
        taps = product(*(axis.residues[r] for axis, r in zip(axes, residue, strict=True)))
        classes.append(
            OutputClass(
                residue,
                tuple(
                    (
                        tuple(tap.offset for tap in combination),
                        sum(tap.index * pitch for tap, pitch in zip(combination, pitches, strict=True)),
                    )
                    for combination in taps
                ),
            )
        )
    return tuple(classes)


def _index(convolution: Convolution, tap: int, taps: int) -> int:
    return taps - 1 - tap if convolution.mode is ConvolutionMode.CONVOLUTION else tap


def _frozen(residues: list[list[Tap]]) -> tuple[tuple[Tap, ...], ...]:
    return tuple(tuple(taps) for taps in residues)


def _three(axes: list[Axis]) -> tuple[Axis, ...]:
    return (*(_WHOLE,) * (AXES - len(axes)), *axes)
