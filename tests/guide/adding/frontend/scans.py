"""Methods of pygraph that scan a tensor along an axis: cumulative sums. cudnn-frontend has none."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.enums import DataType
from lowdnn.frontend.arguments import integer
from lowdnn.frontend.builder import GraphBuilder
from lowdnn.frontend.calls import operation
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.layouts import packed_like
from lowdnn.frontend.nodes import Lowered, Ports
from lowdnn.ops.base import Operation
from lowdnn.ops.cumulative_sum import CumulativeSum

NOT_SET = data_type.NOT_SET


@dataclass(frozen=True)
class CumulativeSumNode(Ports):
    """axis: negative ones count from the last axis."""

    inputs: tuple[Tensor, ...]
    axis: int
    output_suffixes: tuple[str, ...] = ("Y",)
    input_names: tuple[str, ...] = ("X",)

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        """The input's dims; strides packed, in its order of dimensions."""
        (output,) = outputs
        if not output.get_dim():
            output.set_dim(self.inputs[0].get_dim())
        if not output.get_stride():
            output.set_stride(packed_like(self.inputs[0], output.get_dim()))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        x = lowered(self.inputs[0])
        axis = self.axis + x.rank if self.axis < 0 else self.axis
        return CumulativeSum(axis, x=x, y=lowered(outputs[0]))


class ScanMethods(GraphBuilder):
    """See the module's docstring."""

    @operation
    def cumulative_sum(
        self, input: Tensor, axis: int = -1, compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> Tensor:
        """The sums of ``input`` up to and including each element along ``axis``, in FLOAT (DOUBLE of DOUBLE)."""
        node = CumulativeSumNode((input,), integer(axis, "cumulative_sum.axis"))
        return self._add(node, compute_data_type, name)
