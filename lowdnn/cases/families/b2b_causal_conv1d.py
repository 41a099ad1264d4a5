"""Back-to-back gated causal convolutions along sequences.

b2b_causal_conv1d b=2 c=64 l=1000 proj=4 mixer=128 dtype=bf16
b2b_causal_conv1d b=2 c=64 l=1000 proj=4 mixer=7 dir=bwd dtype=fp16
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowdnn.cases import text
from lowdnn.cases.base import Case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.text import key
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.b2b_causal_conv1d import ROWS
from lowdnn.ops.b2b_causal_conv1d_backward import B2BCausalConv1dBackward
from lowdnn.ops.b2b_causal_conv1d_forward import B2BCausalConv1dForward


@dataclass(frozen=True)
class B2BCausalConv1dCase(Case):
    """The gated convolutions of x (b, 3 * c, l) with filters of ``proj`` and ``mixer`` taps, or their gradients
    (dir=bwd).

    save: whether y is an output beside y_gated, with dir=fwd.  layout, out_layout: the memory order of x, and of the
    other tensors of sequences.  dtype: the type of x, y and dy.  params: the type of filters and biases.  out: the type
    of y_gated and dx.  sums: the type of the gradients of filters and biases.
    """

    family: ClassVar[str] = "b2b_causal_conv1d"

    b: int = key(text.integer(0))
    c: int = key(text.integer(0))
    l: int = key(text.integer(0))  # noqa: E741 (the name in the literature)
    proj: int = key(text.integer(1))
    mixer: int = key(text.integer(1))
    dir: str = key(text.choice("fwd", "bwd"), "fwd")
    save: str = key(text.choice("yes", "no"), "yes")
    layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    out_layout: str | None = key(text.choice(*(item.value for item in Layout)), None)
    dtype: DataType = key(text.data_type(), DataType.BFLOAT16)
    params: DataType | None = key(text.data_type(), None)
    out: DataType | None = key(text.data_type(), None)
    sums: DataType | None = key(text.data_type(), None)
    align: int = key(text.integer(1), 16)

    def graph(self) -> OperationGraph:
        builder = CaseBuilder(alignment_bytes=self.align)
        params, layout = self.params or self.dtype, Layout(self.out_layout or self.layout)
        wide, narrow = (self.b, ROWS * self.c, self.l), (self.b, self.c, self.l)
        given = {
            "x": builder.tensor(wide, self.dtype, layout=Layout(self.layout), name="x"),
            "weights_proj": builder.tensor((ROWS * self.c, self.proj), params, name="weights_proj"),
            "weights_mixer": builder.tensor((self.c, self.mixer), params, name="weights_mixer"),
            "skip_bias": builder.tensor((self.c,), params, name="skip_bias"),
        }
        if self.dir == "bwd" or self.save == "yes":
            given["y"] = builder.tensor(narrow, self.dtype, layout=layout, name="y")
        if self.dir == "fwd":
            y_gated = builder.tensor(narrow, self.out or self.dtype, layout=layout, name="y_gated")
            builder.add(B2BCausalConv1dForward(y_gated=y_gated, **given))
            return builder.graph()
        sums = self.sums or self.sum_type
        builder.add(
            B2BCausalConv1dBackward(
                dy=builder.tensor(narrow, self.dtype, layout=layout, name="dy"),
                dx=builder.tensor(wide, self.out or self.dtype, layout=Layout(self.layout), name="dx"),
                dweights_proj=builder.tensor((ROWS * self.c, self.proj), sums, name="dweights_proj"),
                dweights_mixer=builder.tensor((self.c, self.mixer), sums, name="dweights_mixer"),
                dskip_bias=builder.tensor((self.c,), sums, name="dskip_bias"),
                **given,
            )
        )
        return builder.graph()

    @property
    def is_exact(self) -> bool:
        return True

    @property
    def length(self) -> int:
        """Products of inputs in an element: each gate is a product of sums, so their numbers of terms multiply."""
        gate = self.proj**2 * (self.mixer + 1)
        return gate * self.proj * (1 if self.dir == "fwd" else max(1, self.b * self.l))

    @property
    def exact_length(self) -> int:
        """A number so large that exact inputs are 1, 0 and -1: the products have up to seven factors."""
        return max(self.length, 2**20)

    @property
    def sum_type(self) -> DataType:
        return DataType.DOUBLE if self.dtype is DataType.DOUBLE else DataType.FLOAT
