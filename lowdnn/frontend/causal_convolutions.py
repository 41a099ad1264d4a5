"""Causal convolutions along sequences in pygraph, with the names of ``cudnn.ops`` of cudnn-frontend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from lowdnn.checks import shown
from lowdnn.enums import ConvolutionMode, DataType
from lowdnn.frontend.arguments import boolean
from lowdnn.frontend.builder import GraphBuilder
from lowdnn.frontend.calls import operation
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.layouts import strides_like
from lowdnn.frontend.nodes import Lowered
from lowdnn.frontend.ports_node import PortsNode
from lowdnn.ops import tensor as ops
from lowdnn.ops.b2b_causal_conv1d_backward import B2BCausalConv1dBackward
from lowdnn.ops.b2b_causal_conv1d_forward import B2BCausalConv1dForward
from lowdnn.ops.base import Operation
from lowdnn.ops.causal_conv1d_backward import CausalConv1dBackward
from lowdnn.ops.causal_conv1d_forward import CausalConv1dForward
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
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
#: The convolutions by the port of their result.
_FFT_OPERATIONS: Mapping[str, Callable[..., Operation]] = {
    "y": ConvolutionForward,
    "dx": ConvolutionBackwardData,
    "dw": ConvolutionBackwardFilter,
}


@dataclass(frozen=True)
class CausalConv1dNode(PortsNode):
    """Inputs and outputs by the operation's ports; those that are None are left out."""

    activation: CausalConv1dActivation

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
        tensors = self._lowered_ports(outputs, lowered)
        made = CausalConv1dForward if "y" in tensors else CausalConv1dBackward
        return made(activation=self.activation, **tensors)

    def _check_ranks(self) -> None:
        """Refuses inputs from whose dims the outputs' do not follow; the operation checks all else."""
        ranks = {"x": (3, "(B, D, L)"), "weight": (2, "(D, K)"), "offsets": (1, "(N + 1,)")}
        for port, (rank, expected) in ranks.items():
            if port in self.given:
                _check_rank(port, self.given[port], rank, expected)

    def _state_dims(self) -> tuple[int, ...]:
        if "state_indices" in self.given and "initial_states" in self.given:
            return tuple(self.given["initial_states"].get_dim())
        batch, channels, *_ = self.given["x"].get_dim()
        offsets = self.given.get("offsets")
        return batch if offsets is None else offsets.get_dim()[0] - 1, channels, self.given["weight"].get_dim()[1] - 1


@dataclass(frozen=True)
class B2BCausalConv1dNode(PortsNode):
    """The gated convolutions, where ``y_gated`` is made, or their gradients."""

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        x, mixer = self.given["x"], self.given["weights_mixer"]
        _check_rank("x", x, 3, "(B, 3 * D, L)")
        _check_rank("weights_mixer", mixer, 2, "(D, M)")
        for port, output in zip(self.made, outputs, strict=True):
            source = self.given.get(port.removeprefix("d"), x)
            own = source.get_dim() if port.startswith("d") else [x.get_dim()[0], mixer.get_dim()[0], x.get_dim()[2]]
            if not output.get_dim():
                output.set_dim(own)
            if not output.get_stride():
                output.set_stride(strides_like(source, output.get_dim()))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        tensors = self._lowered_ports(outputs, lowered)
        made = B2BCausalConv1dForward if "y_gated" in tensors else B2BCausalConv1dBackward
        return made(**tensors)


@dataclass(frozen=True)
class FftNode(PortsNode):
    """The convolution with one long filter for each channel, or a gradient: of x where ``dx`` is made, of the filters
    where ``dw`` is.  like: the tensor whose dims and memory order the output has."""

    suffixes: ClassVar[Mapping[str, str]] = {"w": "WEIGHT", "dw": "DWEIGHT"}

    like: Tensor

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        self._check_dims()
        (output,) = outputs
        if not output.get_dim():
            output.set_dim(self.like.get_dim())
        if not output.get_stride():
            output.set_stride(strides_like(self.like, output.get_dim()))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        tensors = self._lowered_ports(outputs, lowered)
        filters = {port: _as_filters(tensor) for port, tensor in tensors.items() if port in ("w", "dw")}
        (taps,) = (tensor.dims[2] for tensor in filters.values())
        convolution = Convolution(compute_type, 1, (taps - 1,), (0,), (1,), (1,), ConvolutionMode.CONVOLUTION)
        return _FFT_OPERATIONS[self.made[0]](convolution, **tensors | filters)

    def _check_dims(self) -> None:
        """Refuses what is no filter for each channel, and sequences without channels or positions; the convolution
        checks all else.
        """
        x, weight = self.given.get("x", self.like), self.given.get("w", self.like)
        _check_rank("x", x, 3, "(B, D, L)")
        channels, dims = x.get_dim()[1], weight.get_dim()
        if min(x.get_dim()[1:]) < 1:
            expected = "(B, D, L) of 1 or more channels and positions"
            raise BadParamError.at("fft_causal_conv1d.x.dims", expected=expected, got=x.get_dim())
        if len(dims) != 2 or dims[0] != channels or dims[1] < 1:
            expected = f"({channels}, K) of 1 or more taps"
            raise BadParamError.at("fft_causal_conv1d.weight.dims", expected=expected, got=dims)


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
        conv_state_indices: Tensor | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor | None]:
        """(Y, FINAL_STATES) of ``x`` (B, D, L), convolved along L with a filter ``weight`` (D, K) for each channel.

        Each element is a sum over itself and the K - 1 before it, plus ``bias`` (D,), through ``activation``: None,
        "identity", "silu" or "swish". The sequences are the first ``seq_len`` (B,) elements of each batch, or those of
        one batch between the ``cu_seqlens`` (N + 1,), both INT32 or INT64. ``initial_states`` (N, D, K - 1) are the
        elements before them, otherwise 0, and the final states the last ones, which follow with
        ``return_final_states``. Computed in FLOAT, or in DOUBLE for ``x`` in DOUBLE.

        With ``conv_state_indices`` (N,), INT32 or INT64, the states are a pool (S, D, K - 1). Sequence n has the slot
        conv_state_indices[n], and a sequence whose index is not one of 0 to S - 1 is empty. Slots that no sequence has
        stay as they are in the memory of the final states, which are an output. Where several sequences have one slot,
        all read what it has before, and the last one's states stay in it.
        """
        where = "causal_conv1d"
        given = {"bias": bias, "offsets": cu_seqlens, "lengths": seq_len, "initial_states": initial_states}
        given["state_indices"] = conv_state_indices
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
        conv_state_indices: Tensor | None = None,
        seq_len: Tensor | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor]:
        """(Y, FINAL_STATES): ``causal_conv1d`` of the next elements ``x`` (B, D, L) of sequences, of which
        ``conv_state`` (B, D, K - 1) has the last ones before. Both states may be the same memory.

        With ``conv_state_indices`` they are a pool (S, D, K - 1), as in ``causal_conv1d``: rows of a batch of changing
        requests keep their slots, and rows with an index of -1 are padding, where Y is 0.
        """
        given = {"x": x, "weight": weight, "bias": bias, "lengths": seq_len, "initial_states": conv_state}
        given["state_indices"] = conv_state_indices
        node = _node("causal_conv1d_update", given, ("y", "final_states"), activation)
        y, final_states = self._add_all(node, compute_data_type, name)
        return y, final_states

    @operation
    def b2b_causal_conv1d(
        self,
        x: Tensor,
        weights_proj: Tensor,
        weights_mixer: Tensor,
        skip_bias: Tensor,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor]:
        """(Y, Y_GATED) of ``x`` (B, 3 * D, L): two causal convolutions with gates between and behind them.

        ``weights_proj`` (3 * D, P) makes rows p_0, p_1 and p_2 of each channel from x's channels 3 * d to 3 * d + 2. Y
        is the convolution of g = p_1 * p_2 with ``weights_mixer`` (D, M), plus ``skip_bias`` (D,) times g, and Y_GATED
        is Y * p_0. Computed in FLOAT, or in DOUBLE for ``x`` in DOUBLE.
        """
        given = {"x": x, "weights_proj": weights_proj, "weights_mixer": weights_mixer, "skip_bias": skip_bias}
        y, y_gated = self._add_all(B2BCausalConv1dNode(given, ("y", "y_gated")), compute_data_type, name)
        return y, y_gated

    @operation
    def b2b_causal_conv1d_backward(
        self,
        dy: Tensor,
        x: Tensor,
        weights_proj: Tensor,
        weights_mixer: Tensor,
        skip_bias: Tensor,
        y: Tensor,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(DX, DWEIGHTS_PROJ, DWEIGHTS_MIXER, DSKIP_BIAS) from ``dy``, the gradient of ``b2b_causal_conv1d``'s Y_GATED,
        its arguments and its ``y``."""
        given = {"x": x, "weights_proj": weights_proj, "weights_mixer": weights_mixer, "skip_bias": skip_bias}
        made = ("dx", "dweights_proj", "dweights_mixer", "dskip_bias")
        node = B2BCausalConv1dNode({"dy": dy, **given, "y": y}, made)
        dx, dprojection, dmixer, dskip = self._add_all(node, compute_data_type, name)
        return dx, dprojection, dmixer, dskip

    @operation
    def fft_causal_conv1d(
        self, x: Tensor, weight: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> Tensor:
        """Y of ``x`` (B, D, L), convolved along L with a long filter ``weight`` (D, K) for each channel.

        y[b, d, l] is the sum of weight[d, q] * x[b, d, l - q]: the first element of a filter belongs to the current
        position, where the last one does in ``causal_conv1d``. The graph has a convolution, and the fastest engine
        computes it: ``conv_fft`` where the filter is long.
        """
        (y,) = self._add_all(FftNode({"x": x, "w": weight}, ("y",), x), compute_data_type, name)
        return y

    @operation
    def fft_causal_conv1d_backward(
        self, dy: Tensor, x: Tensor, weight: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> tuple[Tensor, Tensor]:
        """(DX, DWEIGHT) from ``dy``, the gradient of ``fft_causal_conv1d``'s Y, and the arguments that it had."""
        label = self._label(name)
        data, filters = FftNode({"dy": dy, "w": weight}, ("dx",), x), FftNode({"x": x, "dy": dy}, ("dw",), weight)
        (dx,), (dweight,) = (self._add_all(node, compute_data_type, label) for node in (data, filters))
        return dx, dweight


def _check_rank(port: str, tensor: Tensor, rank: int, expected: str) -> None:
    if len(dims := tensor.get_dim()) != rank:
        raise BadParamError.at(f"causal_conv1d.{port}.dims", expected=expected, got=dims)


def _as_filters(weight: ops.Tensor) -> ops.Tensor:
    """``weight`` (D, K) as the filters (D, 1, K) of a convolution with a group for each channel."""
    (channels, taps), (outer, inner) = weight.dims, weight.strides
    return replace(weight, dims=(channels, 1, taps), strides=(outer, max(outer, 1), inner))


def _node(
    where: str, tensors: Mapping[str, Tensor | None], made: tuple[str, ...], activation: str | None
) -> CausalConv1dNode:
    if not isinstance(activation, str | None) or activation not in _ACTIVATIONS:
        expected = "None or one of " + ", ".join(map(repr, filter(None, _ACTIVATIONS)))
        raise BadParamError.at(f"{where}.activation", expected=expected, got=shown(activation))
    given = {port: tensor for port, tensor in tensors.items() if tensor is not None}
    return CausalConv1dNode(given, made, _ACTIVATIONS[activation])
