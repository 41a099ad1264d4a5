"""Causal convolutions along sequences in pygraph, with the names of ``cudnn.ops`` of cudnn-frontend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowdnn.checks import shown
from lowdnn.enums import DataType
from lowdnn.frontend.arguments import boolean
from lowdnn.frontend.builder import GraphBuilder
from lowdnn.frontend.calls import operation
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.layouts import strides_like
from lowdnn.frontend.nodes import Lowered
from lowdnn.ops.base import Operation
from lowdnn.ops.causal_conv1d_backward import CausalConv1dBackward
from lowdnn.ops.causal_conv1d_forward import CausalConv1dForward
from lowdnn.ops.tensor import packed_strides
from lowdnn.status import BadParamError
from lowdnn.subquadratic_enums import CausalConv1dActivation

NOT_SET = data_type.NOT_SET

#: Activations by the names that callers give; None is the identity.
_ACTIVATIONS = {
    None: CausalConv1dActivation.IDENTITY,
    "identity": CausalConv1dActivation.IDENTITY,
    "silu": CausalConv1dActivation.SILU,
    "swish": CausalConv1dActivation.SILU,
}
#: Outputs that have the dims, and the memory order, of an input.
_LIKE = {"y": "x", "dx": "x", "dweight": "weight", "dbias": "bias", "dinitial_states": "initial_states"}


@dataclass(frozen=True)
class CausalConv1dNode:
    """Inputs and outputs by the operation's ports; those that are None are left out."""

    given: Mapping[str, Tensor]
    made: tuple[str, ...]
    activation: CausalConv1dActivation

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(self.given.values())

    @property
    def input_ports(self) -> tuple[str, ...]:
        return tuple(self.given)

    @property
    def output_ports(self) -> tuple[str, ...]:
        return self.made

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(map(str.upper, self.given))

    @property
    def output_suffixes(self) -> tuple[str, ...]:
        return tuple(map(str.upper, self.made))

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        self._check_ranks()
        for port, output in zip(self.made, outputs, strict=True):
            source = self.given.get(_LIKE.get(port, ""))
            if not output.get_dim():
                output.set_dim(self._state_dims() if source is None else source.get_dim())
            if not output.get_stride():
                dims = output.get_dim()
                output.set_stride(packed_strides(tuple(dims)) if source is None else strides_like(source, dims))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        named = {**self.given, **dict(zip(self.made, outputs, strict=True))}
        tensors = {port: lowered(tensor) for port, tensor in named.items()}
        made = CausalConv1dForward if "y" in tensors else CausalConv1dBackward
        return made(activation=self.activation, **tensors)

    def _check_ranks(self) -> None:
        """Refuses inputs from whose dims the outputs' do not follow; the operation checks all else."""
        ranks = {"x": (3, "(B, D, L)"), "weight": (2, "(D, K)"), "offsets": (1, "(N + 1,)")}
        for port, (rank, expected) in ranks.items():
            dims = self.given[port].get_dim() if port in self.given else None
            if dims is not None and len(dims) != rank:
                raise BadParamError.at(f"{self.given[port].label}.dims", expected=expected, got=dims)

    def _state_dims(self) -> tuple[int, ...]:
        batch, channels, *_ = self.given["x"].get_dim()
        offsets = self.given.get("offsets")
        return batch if offsets is None else offsets.get_dim()[0] - 1, channels, self.given["weight"].get_dim()[1] - 1


class CausalConvolutionMethods(GraphBuilder):
    """See the module's docstring."""

    @operation
    def causal_conv1d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        seq_len: Tensor | None = None,
        initial_states: Tensor | None = None,
        return_final_states: bool = False,
        activation: str | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor | None]:
        """(Y, FINAL_STATES) of ``x`` (B, D, L), convolved along L with a filter ``weight`` (D, K) for each channel.

        Each element is a sum over itself and the K - 1 before it, plus ``bias`` (D,), through ``activation``: None,
        "identity", "silu" or "swish". The sequences are the first ``seq_len`` (B,) elements of each batch, or those of
        one batch between the ``cu_seqlens`` (N + 1,), both INT32 or INT64. ``initial_states`` (N, D, K - 1) are the
        elements before them, otherwise 0, and the final states the last ones, which follow with
        ``return_final_states``. Computed in FLOAT, or in DOUBLE for ``x`` in DOUBLE.
        """
        where = "causal_conv1d"
        given = {"bias": bias, "offsets": cu_seqlens, "lengths": seq_len, "initial_states": initial_states}
        made = ("y", "final_states") if boolean(return_final_states, f"{where}.return_final_states") else ("y",)
        node = _node(where, {"x": x, "weight": weight, **given}, made, activation)
        outputs = self._add_all(node, compute_data_type, name)
        return outputs[0], outputs[1] if len(outputs) > 1 else None

    @operation
    def causal_conv1d_backward(
        self,
        dy: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        seq_len: Tensor | None = None,
        initial_states: Tensor | None = None,
        activation: str | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """(DX, DWEIGHT, DBIAS, DINITIAL_STATES) from ``dy``, the gradient of ``causal_conv1d``'s Y, and the arguments
        that it had; the last two are None where bias and initial states are."""
        where = "causal_conv1d_backward"
        given = {"bias": bias, "offsets": cu_seqlens, "lengths": seq_len, "initial_states": initial_states}
        optional = {"dbias": bias, "dinitial_states": initial_states}
        made = ("dx", "dweight", *(port for port, tensor in optional.items() if tensor is not None))
        node = _node(where, {"dy": dy, "x": x, "weight": weight, **given}, made, activation)
        outputs = dict(zip(made, self._add_all(node, compute_data_type, name), strict=True))
        return outputs["dx"], outputs["dweight"], outputs.get("dbias"), outputs.get("dinitial_states")

    @operation
    def causal_conv1d_update(
        self,
        x: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor]:
        """(Y, FINAL_STATES): ``causal_conv1d`` of the next elements ``x`` (B, D, L) of sequences, of which
        ``conv_state`` (B, D, K - 1) has the last ones before. Both states may be the same memory."""
        given = {"x": x, "weight": weight, "bias": bias, "initial_states": conv_state}
        node = _node("causal_conv1d_update", given, ("y", "final_states"), activation)
        y, final_states = self._add_all(node, compute_data_type, name)
        return y, final_states


def _node(
    where: str, tensors: Mapping[str, Tensor | None], made: tuple[str, ...], activation: str | None
) -> CausalConv1dNode:
    if not isinstance(activation, str | None) or activation not in _ACTIVATIONS:
        expected = "None or one of " + ", ".join(map(repr, filter(None, _ACTIVATIONS)))
        raise BadParamError.at(f"{where}.activation", expected=expected, got=shown(activation))
    given = {port: tensor for port, tensor in tensors.items() if tensor is not None}
    return CausalConv1dNode(given, made, _ACTIVATIONS[activation])
