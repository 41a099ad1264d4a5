"""The gradient of a recurrent network for its weights, from what the gradient of its data has saved.

    dW = dgates^T x,  dR = dgates^T h,  dP = dprojected^T unprojected,  dbW = dbR = sum of dgates

summed over all rows, with h the state before each step and x the row that a layer reads. A GRU's columns of n are
dgates' third block for W and bW, and its fourth block for R and bR. Without ``reset_after`` they are the third block
for all of them, and R_n is multiplied with r * h, which the fourth block holds.
Tensors are those of ``rnn_forward`` and ``rnn_backward_data``; dw is a weight space (``rnn_weights``). With
``is_added`` the gradient is added to what dw holds.
Source: cudnn_adv.h, cudnnRNNBackwardWeights_v8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from lowdnn.enums import DataType
from lowdnn.ops.base import Values
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_operation import RecurrentOperation
from lowdnn.ops.rnn_reference import Walk
from lowdnn.ops.rnn_sequences import to_steps
from lowdnn.ops.rnn_tensors import Needs, check, check_needs, dropout_needs, ports_of, taken
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import tensor_input, tensor_output

_WHERE = "rnn_backward_weights"


@dataclass(frozen=True)
class RnnBackwardWeights(RecurrentOperation):
    """See the module's docstring."""

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
        """The operation on ``tensors`` by port, without those that ``rnn`` does not use."""
        return cls(rnn, **taken(cls, tensors, _needs(rnn)), is_added=is_added)

    @property
    def data_type(self) -> DataType:
        return self.x.data_type

    def results(self, walk: Walk, inputs: Values) -> dict[str, NDArray[Any]]:
        """``dw``, where given, is what was there before; it counts where the gradient is added."""
        dw = walk.backward_weights(to_steps(inputs["x"], walk.rows), to_steps(inputs["y"], walk.rows))
        return {"dw": dw + inputs["dw"] if self.is_added else dw}


def _needs(rnn: Rnn) -> Needs:
    projects = (rnn.projection_size > 0, f"with projection size {rnn.projection_size}")
    needs = {"outputs": (rnn.num_layers > 1, f"of {rnn.num_layers} layers")}
    return {**needs, **dict.fromkeys(("unprojected", "dprojected"), projects), **dropout_needs(rnn)}
