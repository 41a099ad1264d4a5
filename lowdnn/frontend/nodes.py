"""The operations of a pygraph before lowering: each infers its output's dims and strides, then becomes one of ``ops``.

Inference follows cudnn-frontend, and fills only what was left out:

    pointwise    dims broadcast over the inputs; strides as those of the first input with these dims, otherwise packed
                 in the first input's order of dimensions (``layouts``)
    convolution  dims by the formula of ``ops.convolution``, those of a gradient must be set; strides channels-last,
                 whatever the input's are
    matmul       dims batch..., M, N; strides row-major
    moe          dims 1, routed rows, N; of the weights' gradient offsets, K, N (one offset for each expert); strides
                 row-major
    reduction    dims must be set, to say what is reduced; strides channels-last
    genstats     dims of the input with 1 for all but the channels; strides channels-last
    norm         y as x; statistics by the mode, with 1 along the normalised axes; gradients of scale and bias as the
                 scale; packed in x's order of dimensions
    softmax      y as x; statistics with 1 along the axes
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from lowdnn.enums import ConvolutionMode, DataType, MoeGroupedMatmulMode, PointwiseMode, ReduceTensorOp
from lowdnn.frontend.arguments import integer, optional_real
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.layouts import strides_like
from lowdnn.ops import gen_stats, matmul, moe_grouped_matmul, moe_grouped_matmul_backward, pointwise
from lowdnn.ops import tensor as ops
from lowdnn.ops.base import HasPorts, Operation
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.described_reduction import DescribedReduction
from lowdnn.ops.gen_stats import GenStats
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.moe_grouped_matmul import MoeGroupedMatmul
from lowdnn.ops.moe_grouped_matmul_backward import MoeGroupedMatmulBackward
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.reduction import Reduction
from lowdnn.ops.tensor import channels_last_strides, packed_strides
from lowdnn.status import BadParamError

#: A function that gives the operation graph's tensor for a tensor of the frontend.
Lowered = Callable[[Tensor], ops.Tensor]


class Node(Protocol):
    """One operation with its inputs."""

    @property
    def inputs(self) -> tuple[Tensor, ...]: ...

    @property
    def output_suffixes(self) -> tuple[str, ...]:
        """The ends of the outputs' default names, one for each output."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """The ends of the inputs' default names; there may be more than ``inputs``."""

    @property
    def input_ports(self) -> tuple[str, ...]:
        """Names of the operation's ports for ``inputs``; further names are unused."""

    @property
    def output_ports(self) -> tuple[str, ...]:
        """Names of the operation's ports for the outputs."""

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        """Fills the dims and strides that the outputs lack; raises ShapeMismatchError."""

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> HasPorts:
        """The operation, with the tensors that ``lowered`` gives; raises what its checks raise."""


class _Named(Protocol):
    @property
    def input_names(self) -> tuple[str, ...]: ...

    @property
    def output_suffixes(self) -> tuple[str, ...]: ...


class Ports:
    """Ports of a node that are the suffixes of its tensors' default names, in lower case."""

    @property
    def input_ports(self: _Named) -> tuple[str, ...]:
        return tuple(map(str.lower, self.input_names))

    @property
    def output_ports(self: _Named) -> tuple[str, ...]:
        return tuple(map(str.lower, self.output_suffixes))


@dataclass(frozen=True)
class PointwiseParameters:
    """Parameters of pointwise modes; None takes the operation's default."""

    relu_lower_clip: float | None = None
    relu_upper_clip: float | None = None
    relu_lower_clip_slope: float | None = None
    swish_beta: float | None = None
    axis: int | None = None

    def checked(self, where: str) -> PointwiseParameters:
        """These parameters in Python's types; raises AttributeTypeError for a value that is no number."""
        return PointwiseParameters(
            optional_real(self.relu_lower_clip, f"{where}.lower_clip"),
            optional_real(self.relu_upper_clip, f"{where}.upper_clip"),
            optional_real(self.relu_lower_clip_slope, f"{where}.negative_slope"),
            optional_real(self.swish_beta, f"{where}.swish_beta"),
            None if self.axis is None else integer(self.axis, f"{where}.axis"),
        )

    def given(self) -> dict[str, float | int]:
        """The parameters that are set, by the field name of ``ops.pointwise.Pointwise``."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class PointwiseNode:
    """type_of: the tensor whose data type the output has."""

    mode: PointwiseMode
    inputs: tuple[Tensor, ...]
    parameters: PointwiseParameters
    type_of: Tensor | None = None
    output_suffixes: tuple[str, ...] = ("OUT_0",)
    input_names: tuple[str, ...] = ("IN_0", "IN_1", "IN_2")

    @property
    def input_ports(self) -> tuple[str, ...]:
        return pointwise.input_ports(self.mode)

    @property
    def output_ports(self) -> tuple[str, ...]:
        return (pointwise.output_port(self.mode),)

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        (output,) = outputs
        if self.type_of is not None:
            output.set_data_type(self.type_of.get_data_type())
        for tensor in self.inputs:
            if tensor.is_constant:
                _infer_constant(tensor, compute_type)
        if not output.get_dim():
            named = zip(self.input_ports, self.inputs, strict=True)
            output.set_dim(pointwise.output_dims({port: tuple(tensor.get_dim()) for port, tensor in named}))
        if not output.get_stride():
            output.set_stride(strides_like(self._like(output.get_dim()), output.get_dim()))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        (output,) = outputs
        ports = pointwise.input_ports(self.mode)
        tensors = {port: lowered(tensor) for port, tensor in zip(ports, self.inputs, strict=True)}
        tensors[pointwise.output_port(self.mode)] = lowered(output)
        description = Pointwise(self.mode, compute_type, **self.parameters.given())  # type: ignore[arg-type]
        return PointwiseOperation(description, **tensors)  # type: ignore[arg-type]

    def _like(self, dims: list[int]) -> Tensor:
        """The first input with these dims, otherwise the first one."""
        return next((tensor for tensor in self.inputs if tensor.get_dim() == dims), self.inputs[0])


@dataclass(frozen=True)
class Geometry:
    """The geometry of a convolution, with one entry for each spatial axis; empty fields take the defaults 0 and 1."""

    pre_padding: tuple[int, ...]
    post_padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    mode: ConvolutionMode

    def convolution(self, compute_type: DataType, rank: int) -> Convolution:
        """For tensors of ``rank``."""
        spatial = rank - 2
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
class ConvolutionNode(Ports, ABC):
    """The base of the three convolutions: two inputs, one output, channels-last strides."""

    inputs: tuple[Tensor, ...]
    geometry: Geometry
    output_suffixes: ClassVar[tuple[str, ...]]
    input_names: ClassVar[tuple[str, ...]]

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        (output,) = outputs
        if not output.get_dim():
            output.set_dim(self._dims(output, self._convolution(compute_type)))
        if not output.get_stride():
            output.set_stride(channels_last_strides(tuple(output.get_dim())))

    @abstractmethod
    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        """See ``Node.lower``."""

    def _dims(self, output: Tensor, convolution: Convolution) -> tuple[int, ...]:
        raise BadParamError.at(
            f"{output.label}.dim",
            expected="dims, which the inputs of a gradient do not determine",
            got="none",
            hint="set them with set_dim",
        )

    def _convolution(self, compute_type: DataType) -> Convolution:
        return self.geometry.convolution(compute_type, len(self.inputs[0].get_dim()))


@dataclass(frozen=True)
class ForwardNode(ConvolutionNode):
    output_suffixes: ClassVar[tuple[str, ...]] = ("Y",)
    input_names: ClassVar[tuple[str, ...]] = ("X", "W")

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        x, w, y = map(lowered, (*self.inputs, *outputs))
        return ConvolutionForward(self._convolution(compute_type), x=x, w=w, y=y)

    def _dims(self, output: Tensor, convolution: Convolution) -> tuple[int, ...]:
        image, weight = (tuple(tensor.get_dim()) for tensor in self.inputs)
        return convolution.output_dims(image, weight)


@dataclass(frozen=True)
class BackwardDataNode(ConvolutionNode):
    output_suffixes: ClassVar[tuple[str, ...]] = ("DX",)
    input_names: ClassVar[tuple[str, ...]] = ("DY", "W")

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        dy, w, dx = map(lowered, (*self.inputs, *outputs))
        return ConvolutionBackwardData(self._convolution(compute_type), w=w, dy=dy, dx=dx)


@dataclass(frozen=True)
class BackwardFilterNode(ConvolutionNode):
    output_suffixes: ClassVar[tuple[str, ...]] = ("DW",)
    input_names: ClassVar[tuple[str, ...]] = ("X", "DY")

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        x, dy, dw = map(lowered, (*self.inputs, *outputs))
        return ConvolutionBackwardFilter(self._convolution(compute_type), x=x, dy=dy, dw=dw)


@dataclass(frozen=True)
class MatmulNode(Ports):
    inputs: tuple[Tensor, ...]
    padding: float
    output_suffixes: tuple[str, ...] = ("C",)
    input_names: tuple[str, ...] = ("A", "B")

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        (output,) = outputs
        a, b = self.inputs
        if not output.get_dim():
            output.set_dim(matmul.output_dims(tuple(a.get_dim()), tuple(b.get_dim())))
        if not output.get_stride():
            output.set_stride(packed_strides(tuple(output.get_dim())))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        (output,) = outputs
        a, b = self.inputs
        return MatmulOperation(Matmul(compute_type, self.padding), lowered(a), lowered(b), lowered(output))


@dataclass(frozen=True)
class MoeNode(Ports):
    """inputs: token, weight, first_token_offset, and what of token_index and token_ks there is."""

    inputs: tuple[Tensor, ...]
    mode: MoeGroupedMatmulMode
    top_k: int
    has_index: bool
    output_suffixes: tuple[str, ...] = ("Output",)

    @property
    def input_names(self) -> tuple[str, ...]:
        return ("TOKEN", "WEIGHT", "FIRST_TOKEN_OFFSET", *(("TOKEN_INDEX",) if self.has_index else ()), "TOKEN_KS")

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        (output,) = outputs
        token, weight, _, *routing = (tuple(tensor.get_dim()) for tensor in self.inputs)
        if not output.get_dim():
            index = routing[0] if self.has_index else None
            output.set_dim(moe_grouped_matmul.output_dims(self.mode, token, weight, index))
        if not output.get_stride():
            output.set_stride(packed_strides(tuple(output.get_dim())))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        token, weight, offsets, *routing = map(lowered, self.inputs)
        index = routing.pop(0) if self.has_index else None
        ks = routing.pop() if routing else None
        output = lowered(outputs[0])
        return MoeGroupedMatmul(self.mode, compute_type, token, weight, offsets, output, index, ks, self.top_k)


@dataclass(frozen=True)
class MoeBackwardNode(Ports):
    inputs: tuple[Tensor, ...]
    output_suffixes: tuple[str, ...] = ("DWeight",)
    input_names: tuple[str, ...] = ("DOUTPUT", "TOKEN", "FIRST_TOKEN_OFFSET")

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        (output,) = outputs
        doutput, token, offsets = (tuple(tensor.get_dim()) for tensor in self.inputs)
        if not output.get_dim():
            output.set_dim((offsets[0], *moe_grouped_matmul_backward.matrix_dims(token, doutput)))
        if not output.get_stride():
            output.set_stride(packed_strides(tuple(output.get_dim())))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        return MoeGroupedMatmulBackward(compute_type, *map(lowered, (*self.inputs, *outputs)))


@dataclass(frozen=True)
class ReductionNode(Ports):
    inputs: tuple[Tensor, ...]
    mode: ReduceTensorOp
    output_suffixes: tuple[str, ...] = ("Y",)
    input_names: tuple[str, ...] = ("X",)

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        (output,) = outputs
        if not output.get_dim():
            raise BadParamError.at(
                f"{output.label}.dim",
                expected="dims, which say what is reduced",
                got="none",
                hint="set them with set_dim, with 1 along the axes that are reduced",
            )
        if not output.get_stride():
            output.set_stride(channels_last_strides(tuple(output.get_dim())))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> HasPorts:
        (output,) = outputs
        return DescribedReduction((lowered(self.inputs[0]),), (lowered(output),), Reduction(self.mode, compute_type))


@dataclass(frozen=True)
class GenStatsNode(Ports):
    inputs: tuple[Tensor, ...]
    output_suffixes: tuple[str, ...] = ("SUM", "SQ_SUM")
    input_names: tuple[str, ...] = ("X",)

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        for output in outputs:
            if not output.get_dim():
                output.set_dim(gen_stats.output_dims(tuple(self.inputs[0].get_dim())))
            if not output.get_stride():
                output.set_stride(channels_last_strides(tuple(output.get_dim())))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        x, total, squares = map(lowered, (*self.inputs, *outputs))
        return GenStats(x, total, squares, compute_type)


def _infer_constant(tensor: Tensor, compute_type: DataType) -> None:
    """A number written into the graph takes the type that the arithmetic is done in."""
    if tensor.get_data_type():
        return
    if compute_type in (DataType.INT32, DataType.INT64) and isinstance(tensor.get_pass_by_value(), int):
        tensor.set_data_type(compute_type)
    else:
        tensor.set_data_type(DataType.DOUBLE if compute_type is DataType.DOUBLE else DataType.FLOAT)
