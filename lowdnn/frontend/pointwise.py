"""The pointwise methods of pygraph, with the names and positional orders of cudnn-frontend.

Each adds one operation and returns its output. Where a method takes two or three operands, any but the first may be a
number. ``compute_data_type`` left out is the graph's; ``name`` names the operation and, through it, the output.
"""

from __future__ import annotations

from lowdnn.enums import PointwiseMode
from lowdnn.frontend.builder import GraphBuilder, Operand
from lowdnn.frontend.calls import operation
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.nodes import PointwiseNode, PointwiseParameters

NOT_SET = data_type.NOT_SET
NO_PARAMETERS = PointwiseParameters()


class PointwiseMethods(GraphBuilder):
    """See the module's docstring."""

    @operation
    def abs(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """|input|."""
        return self._pointwise(PointwiseMode.ABS, (input,), compute_data_type, name)

    @operation
    def ceil(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """The smallest integer not below input."""
        return self._pointwise(PointwiseMode.CEIL, (input,), compute_data_type, name)

    @operation
    def cos(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """cos(input)."""
        return self._pointwise(PointwiseMode.COS, (input,), compute_data_type, name)

    @operation
    def elu(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """input where it is positive, otherwise exp(input) - 1."""
        return self._pointwise(PointwiseMode.ELU_FWD, (input,), compute_data_type, name)

    @operation
    def erf(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """The error function."""
        return self._pointwise(PointwiseMode.ERF, (input,), compute_data_type, name)

    @operation
    def exp(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """exp(input)."""
        return self._pointwise(PointwiseMode.EXP, (input,), compute_data_type, name)

    @operation
    def floor(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """The largest integer not above input."""
        return self._pointwise(PointwiseMode.FLOOR, (input,), compute_data_type, name)

    @operation
    def gelu(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """input / 2 * (1 + erf(input / sqrt 2))."""
        return self._pointwise(PointwiseMode.GELU_FWD, (input,), compute_data_type, name)

    @operation
    def gelu_approx_tanh(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """input / 2 * (1 + tanh(sqrt(2 / pi) * (input + 0.044715 * input^3)))."""
        return self._pointwise(PointwiseMode.GELU_APPROX_TANH_FWD, (input,), compute_data_type, name)

    @operation
    def identity(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """input, converted to the output's data type."""
        return self._pointwise(PointwiseMode.IDENTITY, (input,), compute_data_type, name)

    @operation
    def log(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """The natural logarithm."""
        return self._pointwise(PointwiseMode.LOG, (input,), compute_data_type, name)

    @operation
    def logical_not(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """1 where input is 0, otherwise 0."""
        return self._pointwise(PointwiseMode.LOGICAL_NOT, (input,), compute_data_type, name)

    @operation
    def neg(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """-input."""
        return self._pointwise(PointwiseMode.NEG, (input,), compute_data_type, name)

    @operation
    def reciprocal(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """1 / input."""
        return self._pointwise(PointwiseMode.RECIPROCAL, (input,), compute_data_type, name)

    @operation
    def rsqrt(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """1 / sqrt(input)."""
        return self._pointwise(PointwiseMode.RSQRT, (input,), compute_data_type, name)

    @operation
    def sigmoid(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """1 / (1 + exp(-input))."""
        return self._pointwise(PointwiseMode.SIGMOID_FWD, (input,), compute_data_type, name)

    @operation
    def sin(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """sin(input)."""
        return self._pointwise(PointwiseMode.SIN, (input,), compute_data_type, name)

    @operation
    def softplus(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """log(1 + exp(input))."""
        return self._pointwise(PointwiseMode.SOFTPLUS_FWD, (input,), compute_data_type, name)

    @operation
    def sqrt(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """sqrt(input)."""
        return self._pointwise(PointwiseMode.SQRT, (input,), compute_data_type, name)

    @operation
    def tan(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """tan(input)."""
        return self._pointwise(PointwiseMode.TAN, (input,), compute_data_type, name)

    @operation
    def tanh(self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """tanh(input)."""
        return self._pointwise(PointwiseMode.TANH_FWD, (input,), compute_data_type, name)

    @operation
    def add(self, a: Tensor, b: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """a + b."""
        return self._pointwise(PointwiseMode.ADD, (a, b), compute_data_type, name)

    @operation
    def add_square(self, a: Tensor, b: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """a + b * b."""
        return self._pointwise(PointwiseMode.ADD_SQUARE, (a, b), compute_data_type, name)

    @operation
    def div(self, a: Tensor, b: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """a / b."""
        return self._pointwise(PointwiseMode.DIV, (a, b), compute_data_type, name)

    @operation
    def logical_and(self, a: Tensor, b: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """1 where both are non-zero, otherwise 0."""
        return self._pointwise(PointwiseMode.LOGICAL_AND, (a, b), compute_data_type, name)

    @operation
    def logical_or(self, a: Tensor, b: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """1 where one of both is non-zero, otherwise 0."""
        return self._pointwise(PointwiseMode.LOGICAL_OR, (a, b), compute_data_type, name)

    @operation
    def mul(self, a: Tensor, b: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """a * b."""
        return self._pointwise(PointwiseMode.MUL, (a, b), compute_data_type, name)

    @operation
    def sub(self, a: Tensor, b: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """a - b."""
        return self._pointwise(PointwiseMode.SUB, (a, b), compute_data_type, name)

    @operation
    def max(self, input0: Tensor, input1: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """The larger of both; NaN wins."""
        return self._pointwise(PointwiseMode.MAX, (input0, input1), compute_data_type, name)

    @operation
    def min(self, input0: Tensor, input1: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """The smaller of both; NaN wins."""
        return self._pointwise(PointwiseMode.MIN, (input0, input1), compute_data_type, name)

    @operation
    def mod(self, input0: Tensor, input1: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """The remainder of input0 / input1, with input0's sign."""
        return self._pointwise(PointwiseMode.MOD, (input0, input1), compute_data_type, name)

    @operation
    def pow(self, input0: Tensor, input1: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """input0 to the power of input1."""
        return self._pointwise(PointwiseMode.POW, (input0, input1), compute_data_type, name)

    @operation
    def bias(self, input: Tensor, bias: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """input + bias."""
        return self._pointwise(PointwiseMode.ADD, (input, bias), compute_data_type, name)

    @operation
    def scale(self, input: Tensor, scale: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """input * scale."""
        return self._pointwise(PointwiseMode.MUL, (input, scale), compute_data_type, name)

    @operation
    def cmp_eq(
        self, input: Tensor, comparison: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> Tensor:
        """1 where input == comparison, otherwise 0."""
        return self._pointwise(PointwiseMode.CMP_EQ, (input, comparison), compute_data_type, name)

    @operation
    def cmp_neq(
        self, input: Tensor, comparison: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> Tensor:
        """1 where input != comparison, otherwise 0."""
        return self._pointwise(PointwiseMode.CMP_NEQ, (input, comparison), compute_data_type, name)

    @operation
    def cmp_gt(
        self, input: Tensor, comparison: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> Tensor:
        """1 where input > comparison, otherwise 0."""
        return self._pointwise(PointwiseMode.CMP_GT, (input, comparison), compute_data_type, name)

    @operation
    def cmp_ge(
        self, input: Tensor, comparison: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> Tensor:
        """1 where input >= comparison, otherwise 0."""
        return self._pointwise(PointwiseMode.CMP_GE, (input, comparison), compute_data_type, name)

    @operation
    def cmp_lt(
        self, input: Tensor, comparison: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> Tensor:
        """1 where input < comparison, otherwise 0."""
        return self._pointwise(PointwiseMode.CMP_LT, (input, comparison), compute_data_type, name)

    @operation
    def cmp_le(
        self, input: Tensor, comparison: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> Tensor:
        """1 where input <= comparison, otherwise 0."""
        return self._pointwise(PointwiseMode.CMP_LE, (input, comparison), compute_data_type, name)

    @operation
    def binary_select(
        self, input0: Tensor, input1: Operand, mask: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> Tensor:
        """input0 where mask is non-zero, otherwise input1."""
        return self._pointwise(PointwiseMode.BINARY_SELECT, (input0, input1, mask), compute_data_type, name)

    @operation
    def gen_index(self, input: Tensor, axis: int, compute_data_type: DataTypeLike = NOT_SET, name: str = "") -> Tensor:
        """The index of each element along ``axis``, in the shape of input."""
        return self._pointwise(
            PointwiseMode.GEN_INDEX, (input,), compute_data_type, name, PointwiseParameters(axis=axis)
        )

    @operation
    def relu(
        self,
        input: Tensor,
        negative_slope: float | None = None,
        lower_clip: float | None = None,
        upper_clip: float | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> Tensor:
        """min(input, upper_clip) above lower_clip, below it lower_clip + negative_slope * (input - lower_clip)."""
        parameters = PointwiseParameters(
            relu_lower_clip=lower_clip, relu_upper_clip=upper_clip, relu_lower_clip_slope=negative_slope
        )
        return self._pointwise(PointwiseMode.RELU_FWD, (input,), compute_data_type, name, parameters)

    @operation
    def leaky_relu(
        self,
        input: Tensor,
        negative_slope: float,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> Tensor:
        """input where it is positive, otherwise negative_slope * input."""
        parameters = PointwiseParameters(relu_lower_clip_slope=negative_slope)
        return self._pointwise(PointwiseMode.RELU_FWD, (input,), compute_data_type, name, parameters)

    @operation
    def swish(
        self,
        input: Tensor,
        swish_beta: float | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> Tensor:
        """input / (1 + exp(-swish_beta * input))."""
        parameters = PointwiseParameters(swish_beta=swish_beta)
        return self._pointwise(PointwiseMode.SWISH_FWD, (input,), compute_data_type, name, parameters)

    @operation
    def elu_backward(
        self, loss: Tensor, input: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> Tensor:
        """The gradient of ``elu`` at input, times loss."""
        return self._pointwise(PointwiseMode.ELU_BWD, (loss, input), compute_data_type, name)

    @operation
    def gelu_backward(
        self, loss: Tensor, input: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> Tensor:
        """The gradient of ``gelu`` at input, times loss."""
        return self._pointwise(PointwiseMode.GELU_BWD, (loss, input), compute_data_type, name)

    @operation
    def gelu_approx_tanh_backward(
        self, loss: Tensor, input: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> Tensor:
        """The gradient of ``gelu_approx_tanh`` at input, times loss."""
        return self._pointwise(PointwiseMode.GELU_APPROX_TANH_BWD, (loss, input), compute_data_type, name)

    @operation
    def sigmoid_backward(
        self, loss: Tensor, input: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> Tensor:
        """The gradient of ``sigmoid`` at input, times loss."""
        return self._pointwise(PointwiseMode.SIGMOID_BWD, (loss, input), compute_data_type, name)

    @operation
    def softplus_backward(
        self, loss: Tensor, input: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> Tensor:
        """The gradient of ``softplus`` at input, times loss."""
        return self._pointwise(PointwiseMode.SOFTPLUS_BWD, (loss, input), compute_data_type, name)

    @operation
    def tanh_backward(
        self, loss: Tensor, input: Operand, compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> Tensor:
        """The gradient of ``tanh`` at input, times loss."""
        return self._pointwise(PointwiseMode.TANH_BWD, (loss, input), compute_data_type, name)

    @operation
    def relu_backward(
        self,
        loss: Tensor,
        input: Operand,
        negative_slope: float | None = None,
        lower_clip: float | None = None,
        upper_clip: float | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> Tensor:
        """The gradient of ``relu`` at input, times loss."""
        parameters = PointwiseParameters(
            relu_lower_clip=lower_clip, relu_upper_clip=upper_clip, relu_lower_clip_slope=negative_slope
        )
        return self._pointwise(PointwiseMode.RELU_BWD, (loss, input), compute_data_type, name, parameters)

    @operation
    def leaky_relu_backward(
        self,
        loss: Tensor,
        input: Operand,
        negative_slope: float,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> Tensor:
        """The gradient of ``leaky_relu`` at input, times loss."""
        parameters = PointwiseParameters(relu_lower_clip_slope=negative_slope)
        return self._pointwise(PointwiseMode.RELU_BWD, (loss, input), compute_data_type, name, parameters)

    @operation
    def swish_backward(
        self,
        loss: Tensor,
        input: Operand,
        compute_data_type: DataTypeLike = NOT_SET,
        swish_beta: float | None = None,
        name: str = "",
    ) -> Tensor:
        """The gradient of ``swish`` at input, times loss."""
        parameters = PointwiseParameters(swish_beta=swish_beta)
        return self._pointwise(PointwiseMode.SWISH_BWD, (loss, input), compute_data_type, name, parameters)

    def _pointwise(
        self,
        mode: PointwiseMode,
        operands: tuple[Operand, ...],
        compute_data_type: DataTypeLike,
        name: str,
        parameters: PointwiseParameters = NO_PARAMETERS,
    ) -> Tensor:
        method = mode.name.lower()
        node = PointwiseNode(mode, self._operands(method, operands), parameters.checked(f"pygraph.{method}"))
        return self._add(node, compute_data_type, name)
