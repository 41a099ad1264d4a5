"""Causal convolution along sequences: y, and the states after each sequence. See ``causal_conv1d``.

``final_states`` (N, D, K - 1) has the last K - 1 elements of each sequence, of those before it too where it is shorter.
They are the initial states of what follows, so a step of decoding is this operation with L = 1. Final and initial
states may be the same memory. Slots of a pool that no sequence has keep what is in the final states' memory. Where
several sequences have one slot, all of them read what it has before, and the last one's final states stay in it.
cuDNN has no descriptor of this operation.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import DataType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.causal_conv1d import CausalConv1d, sigmoid
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import tensor_input, tensor_output
from lowdnn.status import BadParamError
from lowdnn.subquadratic_enums import CausalConv1dActivation


@dataclass(frozen=True)
class CausalConv1dForward:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType | None] = None
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.CONTRACTION

    x: Tensor = tensor_input()
    weight: Tensor = tensor_input()
    y: Tensor = tensor_output()
    bias: Tensor | None = tensor_input(default=None)
    lengths: Tensor | None = tensor_input(default=None)
    offsets: Tensor | None = tensor_input(default=None)
    initial_states: Tensor | None = tensor_input(default=None)
    state_indices: Tensor | None = tensor_input(default=None)
    final_states: Tensor | None = tensor_output(default=None)
    activation: CausalConv1dActivation = CausalConv1dActivation.IDENTITY

    def __post_init__(self) -> None:
        where, kept = "causal_conv1d_forward", self.final_states
        self.operands.check(where, {"y": self.y}, {"final_states": kept})
        if self.state_indices is not None and kept is not None and kept.is_virtual:
            expected = "an output beside state_indices, since it keeps its other slots"
            raise BadParamError.at(f"{where}.final_states", expected=expected, got="a virtual tensor")

    @cached_property
    def operands(self) -> CausalConv1d:
        states = self.initial_states or self.final_states
        slots = None if self.state_indices is None or states is None else states.dims[0]
        optional = (self.bias, self.lengths, self.offsets, self.initial_states)
        return CausalConv1d(self.x, self.weight, *optional, self.activation, self.state_indices, slots)

    @property
    def compute_type(self) -> DataType:
        return self.operands.compute_type

    @property
    def flops(self) -> int:
        return self.operands.flops

    def without(self, ports: Collection[str]) -> CausalConv1dForward:
        """The operation without final states, where no operation reads them."""
        return replace(self, final_states=None) if "final_states" in ports else self

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        operands, states = self.operands, self._states_before(inputs)
        y = np.zeros(self.x.dims)
        with np.errstate(all="ignore"):
            for number, batch, elements in operands.sequences(inputs):
                extended = operands.extended(inputs, number, batch, elements)
                z = operands.sums(inputs, extended)
                y[batch, :, elements] = z * sigmoid(z) if operands.has_silu else z
                if (slot := operands.slot(inputs, number)) is not None:
                    states[slot] = extended[:, extended.shape[1] - (operands.taps - 1) :]
        return {"y": y} if self.final_states is None else {"y": y, "final_states": states}

    def _states_before(self, inputs: Values) -> NDArray[Any]:
        """The content of the final states' memory, where some of it may stay."""
        if self.state_indices is None or self.final_states is None:
            return np.zeros(self.operands.state_dims)
        if "final_states" not in inputs:
            where = "causal_conv1d_forward.final_states"
            raise BadParamError.at(where, expected="old values beside state_indices", got="none")
        return inputs["final_states"].copy()
