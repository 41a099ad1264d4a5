"""Rotary position embedding in pygraph, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.enums import DataType
from lowdnn.frontend.arguments import integer, real
from lowdnn.frontend.builder import GraphBuilder
from lowdnn.frontend.calls import operation
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.graph_tensor import Tensor, inferred
from lowdnn.frontend.layouts import strides_like
from lowdnn.frontend.nodes import Lowered, Ports
from lowdnn.ops.base import Operation
from lowdnn.ops.rope_backward import RopeBackward
from lowdnn.ops.rope_forward import RopeForward

NOT_SET = data_type.NOT_SET


@dataclass(frozen=True)
class RopeNode(Ports):
    """The output lies as the first input does."""

    inputs: tuple[Tensor, ...]
    output_scale: float
    rope_dim: int
    is_gradient: bool

    @property
    def input_names(self) -> tuple[str, ...]:
        return ("DY" if self.is_gradient else "INPUT", "FREQS")

    @property
    def output_suffixes(self) -> tuple[str, ...]:
        return ("DX" if self.is_gradient else "OUTPUT",)

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        (output,) = outputs
        if not output.get_dim():
            output.set_dim(self.inputs[0].get_dim())
        if not output.get_stride():
            output.set_stride(strides_like(self.inputs[0], output.get_dim()))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        source, freqs, target = map(lowered, (*self.inputs, *outputs))
        operation = RopeBackward if self.is_gradient else RopeForward
        return operation(source, target, freqs, self.output_scale, self.rope_dim)


class RopeMethods(GraphBuilder):
    """See the module's docstring."""

    @operation
    def rope(
        self,
        input: Tensor,
        freqs: Tensor,
        output_scale: float = 1.0,
        rope_dim: int = 0,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> Tensor:
        """``input`` (B, H, S, D) times ``output_scale``, in rows whose last ``rope_dim`` elements (0: all) are pairs
        (i, i + rope_dim / 2) that are rotated by the angles ``freqs`` (S, 1, 1, rope_dim), usually FLOAT.

        The angle of a pair is that of its first element. Computed in FLOAT, or in DOUBLE for an input in DOUBLE.
        """
        return self._rope("rope", (input, freqs), output_scale, rope_dim, compute_data_type, name)

    @operation
    def rope_backward(
        self,
        dY: Tensor,
        freqs: Tensor,
        output_scale: float = 1.0,
        rope_dim: int = 0,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> Tensor:
        """The gradient of ``rope``'s input from ``dY``, that of its output, and the arguments that it had."""
        return self._rope("rope_backward", (dY, freqs), output_scale, rope_dim, compute_data_type, name)

    def _rope(
        self,
        method: str,
        inputs: tuple[Tensor, ...],
        output_scale: float,
        rope_dim: int,
        compute_data_type: DataTypeLike,
        name: str,
    ) -> Tensor:
        scale = real(output_scale, f"{method}.output_scale")
        node = RopeNode(inputs, scale, integer(rope_dim, f"{method}.rope_dim", 0), method == "rope_backward")
        output = self._add(node, compute_data_type, name)
        if inputs[0].get_dim():  # attention, which is often next, asks for dims
            inferred((output,), lambda: node.infer((output,), DataType.FLOAT))
        return output
