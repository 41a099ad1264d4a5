"""The gradient of a recurrent network for its weights, from what the gradient of its data has saved.

    dW = dgates^T x,  dR = dgates^T h,  dP = dprojected^T unprojected,  dbW = dbR = sum of dgates

summed over all rows, with h the state before each step and x the row that a layer reads. A GRU's columns of n are
dgates' third block for W and bW, and its fourth block for R and bR; without ``reset_after`` its third one for all of
them, and R_n's rows h are r * h of the fourth.
Tensors as in ``rnn_forward`` and ``rnn_backward_data``; dw is a weight space (``rnn_weights``). ``is_added``: the
gradient is added to what dw holds.
Source: cudnn_adv.h, cudnnRNNBackwardWeights_v8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import DataType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_cells import Arithmetic, PlainArithmetic
from lowdnn.ops.rnn_reference import Walk
from lowdnn.ops.rnn_saved import cell_type
from lowdnn.ops.rnn_sequences import to_steps
from lowdnn.ops.rnn_tensors import Needs, check, check_needs, dropout_needs, ports_of, taken
from lowdnn.ops.rnn_weights import WeightSpace
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import tensor_input, tensor_output

_WHERE = "rnn_backward_weights"


@dataclass(frozen=True)
class RnnBackwardWeights:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType | None] = None
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.CONTRACTION

    rnn: Rnn
    x: Tensor = tensor_input()
    y: Tensor = tensor_input()
    dgates: Tensor = tensor_input()
    dw: Tensor = tensor_output()
    outputs: Tensor | None = tensor_input(default=None)
    unprojected: Tensor | None = tensor_input(default=None)
    dprojected: Tensor | None = tensor_input(default=None)
    seq_lengths: Tensor | None = tensor_input(default=None)
    hx: Tensor | None = tensor_input(default=None)
    dropout_seed: Tensor | None = tensor_input(default=None)
    dropout_offset: Tensor | None = tensor_input(default=None)
    is_added: bool = False

    def __post_init__(self) -> None:
        tensors = ports_of(self)
        check_needs(_WHERE, tensors, _needs(self.rnn))
        check(_WHERE, self.rnn, tensors)

    @classmethod
    def of(cls, rnn: Rnn, tensors: Mapping[str, Tensor], *, is_added: bool = False) -> RnnBackwardWeights:
        """The operation on those of ``tensors``, by port, that it may have."""
        return cls(rnn, **taken(cls, tensors, _needs(rnn)), is_added=is_added)

    @property
    def compute_type(self) -> DataType:
        return cell_type(self.x.data_type)

    @property
    def flops(self) -> int:
        return 2 * WeightSpace(self.rnn).element_count * self.rnn.max_length * self.rnn.batch_size

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        """``dw``, where given, is what was there before; it counts where the gradient is added."""
        return self._evaluated(inputs, Arithmetic())

    def rounded_reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        return self._evaluated(inputs, PlainArithmetic(self.x.data_type, self.rnn.uses_tf32))

    def _evaluated(self, inputs: Values, arithmetic: Arithmetic) -> dict[str, NDArray[Any]]:
        walk = Walk(self.rnn, arithmetic, inputs)
        with np.errstate(all="ignore"):
            dw = walk.backward_weights(to_steps(inputs["x"], walk.rows), to_steps(inputs["y"], walk.rows))
        return {"dw": dw + inputs["dw"] if self.is_added else dw}


def _needs(rnn: Rnn) -> Needs:
    projects = (rnn.projection_size > 0, f"with projection size {rnn.projection_size}")
    needs = {"outputs": (rnn.num_layers > 1, f"of {rnn.num_layers} layers")}
    return {**needs, **dict.fromkeys(("unprojected", "dprojected"), projects), **dropout_needs(rnn)}
