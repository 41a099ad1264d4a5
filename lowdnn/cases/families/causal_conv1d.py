"""Causal convolutions along sequences.

causal_conv1d b=2 c=64 l=1000 k=4 act=silu dtype=bf16
causal_conv1d b=1 c=64 l=1000 k=4 sizes=300x0x700 states=initial dir=bwd layout=nhwc dtype=fp16
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lowdnn import dtypes
from lowdnn.cases import text
from lowdnn.cases.base import Case, Inputs
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.text import key
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.causal_conv1d_backward import CausalConv1dBackward
from lowdnn.ops.causal_conv1d_forward import CausalConv1dForward
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError
from lowdnn.subquadratic_enums import CausalConv1dActivation

_MOST_SEQUENCES = 1024


@dataclass(frozen=True)
class CausalConv1dCase(Case):
    """Causal convolution of x (b, c, l) with filters of k taps, or its gradients (dir=bwd).

    lengths: elements of each batch's sequence.  sizes: elements of each of the sequences that lie one behind the other
    in the only batch.  index: the type of those.  states: the places, before or after the sequences, that have states.
    slots: the slot of each sequence in a pool of states, with dir=fwd.  pool: the number of slots.
    layout: the memory order of x and dy, by default positions side by side; with nhwc channels are.  out_layout: the
    memory order of y and dx.  dtype: the type of x and dy.  params: the type of weight and bias.  out: the type of y
    and dx.  sums: the type of the gradients of weight and bias.
    """

    family: ClassVar[str] = "causal_conv1d"

    b: int = key(text.integer(0))
    c: int = key(text.integer(0))
    l: int = key(text.integer(0))  # noqa: E741 (the name in the literature)
    k: int = key(text.integer(1))
    dir: str = key(text.choice("fwd", "bwd"), "fwd")
    act: str = key(text.choice("none", "silu"), "none")
    bias: str = key(text.choice("yes", "no"), "yes")
    lengths: tuple[int, ...] = key(text.extents(0, _MOST_SEQUENCES), ())
    sizes: tuple[int, ...] = key(text.extents(0, _MOST_SEQUENCES), ())
    states: str = key(text.choice("none", "initial", "final", "both"), "none")
    slots: tuple[int, ...] = key(text.extents(0, _MOST_SEQUENCES), ())
    pool: int = key(text.integer(0), 0)
    layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    out_layout: str | None = key(text.choice(*(item.value for item in Layout)), None)
    dtype: DataType = key(text.data_type(), DataType.BFLOAT16)
    params: DataType | None = key(text.data_type(), None)
    out: DataType | None = key(text.data_type(), None)
    sums: DataType | None = key(text.data_type(), None)
    index: DataType = key(text.data_type(), DataType.INT32)
    align: int = key(text.integer(1), 16)

    def graph(self) -> OperationGraph:
        self._check()
        builder = CaseBuilder(alignment_bytes=self.align)
        params, dims = self.params or self.dtype, (self.b, self.c, self.l)
        x = builder.tensor(dims, self.dtype, layout=Layout(self.layout), name="x")
        weight = builder.tensor((self.c, self.k), params, name="weight")
        optional: dict[str, Tensor] = {}
        if self.bias == "yes":
            optional["bias"] = builder.tensor((self.c,), params, name="bias")
        if self.lengths:
            optional["lengths"] = builder.tensor((self.b,), self.index, name="lengths")
        if self.sizes:
            optional["offsets"] = builder.tensor((len(self.sizes) + 1,), self.index, name="offsets")
        if self.slots:
            optional["state_indices"] = builder.tensor((len(self.slots),), self.index, name="state_indices")
        states = (self.pool if self.slots else len(self.sizes) or self.b, self.c, self.k - 1)
        if self.states in ("initial", "both"):
            optional["initial_states"] = builder.tensor(states, self.dtype, name="initial_states")
        activation = CausalConv1dActivation.SILU if self.act == "silu" else CausalConv1dActivation.IDENTITY
        out = builder.tensor(dims, self.out or self.dtype, layout=Layout(self.out_layout or self.layout), name="out")
        if self.dir == "fwd":
            if self.states in ("final", "both"):
                optional["final_states"] = builder.tensor(states, self.dtype, name="final_states")
            builder.add(CausalConv1dForward(x=x, weight=weight, y=out, activation=activation, **optional))
            return builder.graph()
        sums = self.sums or (DataType.DOUBLE if self.dtype is DataType.DOUBLE else DataType.FLOAT)
        dy = builder.tensor(dims, self.dtype, layout=Layout(self.layout), name="dy")
        dweight = builder.tensor((self.c, self.k), sums, name="dweight")
        if "bias" in optional:
            optional["dbias"] = builder.tensor((self.c,), sums, name="dbias")
        if "initial_states" in optional:
            optional["dinitial_states"] = builder.tensor(states, self.dtype, name="dinitial_states")
        builder.add(
            CausalConv1dBackward(x=x, weight=weight, dy=dy, dx=out, dweight=dweight, activation=activation, **optional)
        )
        return builder.graph()

    def inputs(self, seed: int, exact: bool) -> Inputs:
        bounds = {"lengths": np.array(self.lengths), "offsets": np.cumsum((0, *self.sizes))}
        bounds["state_indices"] = np.array(self.slots)
        found = super().inputs(seed, exact)
        given = (tensor for tensor in self.graph().inputs if tensor.name in bounds)
        return found | {tensor.uid: dtypes.from_float64(bounds[tensor.name], tensor.data_type) for tensor in given}

    @property
    def is_exact(self) -> bool:
        return self.act == "none"

    @property
    def length(self) -> int:
        return self.k + 1 if self.dir == "fwd" else max(self.k, self.b * self.l)

    @property
    def sum_type(self) -> DataType:
        return DataType.DOUBLE if self.dtype is DataType.DOUBLE else DataType.FLOAT

    def _accumulated(self, graph: OperationGraph) -> list[Tensor]:
        """The final states, where some slots keep their old values."""
        return [tensor for tensor in graph.outputs if self.slots and tensor.name == "final_states"]

    def _check(self) -> None:
        if self.lengths and len(self.lengths) != self.b:
            got = "x".join(map(str, self.lengths))
            raise BadParamError.at("causal_conv1d.lengths", expected=f"{self.b} of them, one for each batch", got=got)
        if sum(self.sizes) > self.l:
            expected = f"sequences of at most {self.l} elements together"
            raise BadParamError.at("causal_conv1d.sizes", expected=expected, got=sum(self.sizes))
        if self.dir == "bwd" and self.states in ("final", "both"):
            raise BadParamError.at("causal_conv1d.states", expected="none or initial with dir=bwd", got=self.states)
        if self.dir == "bwd" and self.slots:
            raise BadParamError.at(
                "causal_conv1d.slots", expected="none with dir=bwd", got="x".join(map(str, self.slots))
            )
