"""The operations of a pygraph before lowering: each infers its output's dims and strides, then becomes one of ``ops``.

Inference follows cudnn-frontend, and fills only what was left out:

    pointwise    dims broadcast over the inputs; strides of the first input with these dims, otherwise the first
                 input's order of dimensions, packed
    convolution  dims by the formula of ``ops.convolution``; strides channels-last, whatever the input's are
    matmul       dims batch..., M, N; strides row-major
    reduction    dims of the input (set the output's dims to say what is reduced); strides channels-last
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from lowdnn.enums import ConvolutionMode, DataType, PointwiseMode, ReduceTensorOp
from lowdnn.frontend.arguments import integer, optional_number
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.ops import matmul, pointwise
from lowdnn.ops import tensor as ops
from lowdnn.ops.base import Operation
from lowdnn.ops.convolution import Convolution, ConvolutionForward
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.tensor import channels_last_strides, packed_strides

#: From a tensor of the frontend to that of the operation graph.
Lowered = Callable[[Tensor], ops.Tensor]


class Node(Protocol):
    """One operation with its inputs."""

    @property
    def inputs(self) -> tuple[Tensor, ...]: ...

    @property
    def output_suffix(self) -> str:
        """What the output's default name ends in."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """What the inputs' default names end in; may be longer than ``inputs``."""

    def infer(self, output: Tensor, compute_type: DataType) -> None:
        """Fills the dims and strides that ``output`` has not; raises ShapeMismatchError."""

    def lower(self, output: Tensor, compute_type: DataType, lowered: Lowered) -> Operation:
        """The operation, with the tensors that ``lowered`` gives; raises what its checks raise."""


@dataclass(frozen=True)
class PointwiseParameters:
    """Parameters of pointwise modes; None takes the operation's default."""

    relu_lower_clip: float | None = None
    relu_upper_clip: float | None = None
    relu_lower_clip_slope: float | None = None
    swish_beta: float | None = None
    axis: int | None = None

    def checked(self, where: str) -> PointwiseParameters:
        """The same in Python's types; raises AttributeTypeError for what is no number."""
        return PointwiseParameters(
            optional_number(self.relu_lower_clip, f"{where}.lower_clip"),
            optional_number(self.relu_upper_clip, f"{where}.upper_clip"),
            optional_number(self.relu_lower_clip_slope, f"{where}.negative_slope"),
            optional_number(self.swish_beta, f"{where}.swish_beta"),
            None if self.axis is None else integer(self.axis, f"{where}.axis"),
        )

    def given(self) -> dict[str, float | int]:
        """Those that are set, by the field name of ``ops.pointwise.Pointwise``."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class PointwiseNode:
    mode: PointwiseMode
    inputs: tuple[Tensor, ...]
    parameters: PointwiseParameters
    output_suffix: str = "OUT_0"
    input_names: tuple[str, ...] = ("IN_0", "IN_1", "IN_2")

    def infer(self, output: Tensor, compute_type: DataType) -> None:
        for tensor in self.inputs:
            if tensor.is_constant:
                _infer_constant(tensor, compute_type)
        if not output.get_dim():
            output.set_dim(pointwise.output_dims(tuple(tuple(tensor.get_dim()) for tensor in self.inputs)))
        if not output.get_stride():
            output.set_stride(self._strides(output.get_dim()))

    def lower(self, output: Tensor, compute_type: DataType, lowered: Lowered) -> Operation:
        ports = pointwise.input_ports(self.mode)
        tensors = {port: lowered(tensor) for port, tensor in zip(ports, self.inputs, strict=True)}
        tensors[pointwise.output_port(self.mode)] = lowered(output)
        description = Pointwise(self.mode, compute_type, **self.parameters.given())  # type: ignore[arg-type]
        return PointwiseOperation(description, **tensors)  # type: ignore[arg-type]

    def _strides(self, dims: list[int]) -> tuple[int, ...]:
        for tensor in self.inputs:
            if tensor.get_dim() == dims:
                return tuple(tensor.get_stride())
        order = stride_order(self.inputs[0].get_stride(), len(dims))
        return packed_strides(tuple(dims), order)


@dataclass(frozen=True)
class ConvolutionNode:
    inputs: tuple[Tensor, ...]
    pre_padding: tuple[int, ...]
    post_padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    mode: ConvolutionMode
    output_suffix: str = "Y"
    input_names: tuple[str, ...] = ("X", "W")

    def infer(self, output: Tensor, compute_type: DataType) -> None:
        image, weight = self.inputs
        if not output.get_dim():
            geometry = self._geometry(compute_type)
            output.set_dim(geometry.output_dims(tuple(image.get_dim()), tuple(weight.get_dim())))
        if not output.get_stride():
            output.set_stride(channels_last_strides(tuple(output.get_dim())))

    def lower(self, output: Tensor, compute_type: DataType, lowered: Lowered) -> Operation:
        image, weight = self.inputs
        return ConvolutionForward(self._geometry(compute_type), lowered(image), lowered(weight), lowered(output))

    def _geometry(self, compute_type: DataType) -> Convolution:
        spatial = len(self.inputs[0].get_dim()) - 2
        return Convolution(
            compute_type,
            spatial,
            self.pre_padding or (0,) * spatial,
            self.post_padding or (0,) * spatial,
            self.stride or (1,) * spatial,
            self.dilation or (1,) * spatial,
            self.mode,
        )


@dataclass(frozen=True)
class MatmulNode:
    inputs: tuple[Tensor, ...]
    padding: float
    output_suffix: str = "C"
    input_names: tuple[str, ...] = ("A", "B")

    def infer(self, output: Tensor, compute_type: DataType) -> None:
        a, b = self.inputs
        if not output.get_dim():
            output.set_dim(matmul.output_dims(tuple(a.get_dim()), tuple(b.get_dim())))
        if not output.get_stride():
            output.set_stride(packed_strides(tuple(output.get_dim())))

    def lower(self, output: Tensor, compute_type: DataType, lowered: Lowered) -> Operation:
        a, b = self.inputs
        return MatmulOperation(Matmul(compute_type, self.padding), lowered(a), lowered(b), lowered(output))


@dataclass(frozen=True)
class ReductionNode:
    inputs: tuple[Tensor, ...]
    mode: ReduceTensorOp
    output_suffix: str = "Y"
    input_names: tuple[str, ...] = ("X",)

    def infer(self, output: Tensor, compute_type: DataType) -> None:
        if not output.get_dim():
            output.set_dim(self.inputs[0].get_dim())
        if not output.get_stride():
            output.set_stride(channels_last_strides(tuple(output.get_dim())))

    def lower(self, output: Tensor, compute_type: DataType, lowered: Lowered) -> Operation:
        return ReductionOperation(Reduction(self.mode, compute_type), lowered(self.inputs[0]), lowered(output))


def stride_order(strides: list[int], rank: int) -> tuple[int, ...]:
    """The dimensions from the outermost to the innermost, by falling stride; row-major where the ranks differ."""
    if len(strides) != rank:
        return tuple(range(rank))
    return tuple(sorted(range(rank), key=lambda axis: (-strides[axis], axis)))


def _infer_constant(tensor: Tensor, compute_type: DataType) -> None:
    """A number written into the graph takes the type that the arithmetic is done in."""
    if tensor.get_data_type():
        return
    if compute_type in (DataType.INT32, DataType.INT64) and isinstance(tensor.value, int):
        tensor.set_data_type(compute_type)
    else:
        tensor.set_data_type(DataType.DOUBLE if compute_type is DataType.DOUBLE else DataType.FLOAT)
