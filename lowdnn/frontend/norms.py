"""The norms of pygraph.

cudnn-frontend's Python has no ``groupnorm`` and no gradient of it; it has ``bn_finalize`` in C++ alone.

Epsilon and momentum are by-value tensors (``tensor_scalar``, or ``tensor`` with is_pass_by_value), or numbers, which
are fixed in the graph. Without scale and bias nothing is scaled. Outputs that a phase does not have are None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lowdnn.checks import sequence
from lowdnn.enums import NormFwdPhase, NormMode, PointwiseMode
from lowdnn.frontend.arguments import boolean, integer, real
from lowdnn.frontend.builder import GraphBuilder, Operand
from lowdnn.frontend.calls import operation
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.enums import backend_norm_phase, norm_forward_phase, scalar_type
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.nodes import PointwiseNode, PointwiseParameters
from lowdnn.frontend.norm_nodes import AlikeNode, BnFinalizeNode, NormBackwardNode, NormForwardNode
from lowdnn.ops.divisive_normalization import DivisiveNormalizationBackward, DivisiveNormalizationForward
from lowdnn.ops.lrn import LrnBackward, LrnForward
from lowdnn.status import BadParamError

NOT_SET = data_type.NOT_SET


class NormMethods(GraphBuilder):
    """See the module's docstring."""

    @operation
    def layernorm(
        self,
        norm_forward_phase: norm_forward_phase,
        input: Tensor,
        scale: Tensor | None = None,
        bias: Tensor | None = None,
        epsilon: Operand | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(Y, mean, inv_variance) over the axes along which scale and bias extend; without them all but the first."""
        mode = NormMode.LAYER_NORM
        return self._norm("layernorm", mode, norm_forward_phase, input, scale, bias, epsilon, compute_data_type, name)

    @operation
    def adalayernorm(
        self,
        norm_forward_phase: norm_forward_phase,
        input: Tensor,
        scale: Tensor,
        bias: Tensor | None = None,
        epsilon: Operand | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(Y, mean, inv_variance) with a scale and a bias for each sample, such as (N, 1, D) for (N, S, D)."""
        mode = NormMode.ADA_LAYER_NORM
        return self._norm(
            "adalayernorm", mode, norm_forward_phase, input, scale, bias, epsilon, compute_data_type, name
        )

    @operation
    def instancenorm(
        self,
        norm_forward_phase: norm_forward_phase,
        input: Tensor,
        scale: Tensor,
        bias: Tensor,
        epsilon: Operand,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(Y, mean, inv_variance) over the spatial axes."""
        mode = NormMode.INSTANCE_NORM
        return self._norm(
            "instancenorm", mode, norm_forward_phase, input, scale, bias, epsilon, compute_data_type, name
        )

    @operation
    def groupnorm(
        self,
        norm_forward_phase: norm_forward_phase,
        input: Tensor,
        group_count: int,
        scale: Tensor | None = None,
        bias: Tensor | None = None,
        epsilon: Operand | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(Y, mean, inv_variance) over the spatial axes and groups of neighbouring channels; statistics (N, groups,
        1...)."""
        mode, groups = NormMode.GROUP_NORM, integer(group_count, "groupnorm.group_count", 1)
        return self._norm(
            "groupnorm", mode, norm_forward_phase, input, scale, bias, epsilon, compute_data_type, name, groups
        )

    @operation
    def rmsnorm(
        self,
        norm_forward_phase: norm_forward_phase,
        input: Tensor,
        scale: Tensor | None = None,
        bias: Tensor | None = None,
        epsilon: Operand | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor | None]:
        """(Y, inv_variance): input over the root of its mean square."""
        mode = NormMode.RMS_NORM
        y, _, inv_variance = self._norm(
            "rmsnorm", mode, norm_forward_phase, input, scale, bias, epsilon, compute_data_type, name
        )
        return y, inv_variance

    @operation
    def batchnorm(
        self,
        input: Tensor,
        scale: Tensor,
        bias: Tensor,
        in_running_mean: Tensor | None,
        in_running_var: Tensor | None,
        epsilon: Operand,
        momentum: Operand | None,
        peer_stats: Sequence[Tensor] = (),
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """(Y, mean, inv_variance, next running mean, next running variance) over all axes but the channels, in
        training.

        input (N, C, spatial...), all others (1, C, 1...), in FLOAT for inputs of 8 or 16 bits. inv_variance is
        1 / sqrt(variance + epsilon), with the variance over the count of elements. The next running value is
        (1 - momentum) * running + momentum * batch, with the variance over the count minus 1.

        peer_stats: the buffers of the ranks that have parts of one batch, of equal size, and run the same operation:
        ``distributed.PeerBuffers``'s ``peer_stats``, this rank's own first. The statistics are then those of the whole
        batch.
        """
        given = {
            "x": input,
            "epsilon": self._scalar(epsilon, "epsilon"),
            "scale": scale,
            "bias": bias,
            "exp_avg_factor": self._scalar(momentum, "momentum"),
            "input_running_mean": in_running_mean,
            "input_running_var": in_running_var,
            **_peer_ports("batchnorm", peer_stats),
        }
        made: tuple[str, ...] = ("y", "mean", "inv_variance")
        if in_running_mean is not None or in_running_var is not None:
            made += ("output_running_mean", "output_running_var")
        else:
            del given["exp_avg_factor"]
        node = NormForwardNode(_present(given), made, NormMode.BATCH_NORM, NormFwdPhase.TRAINING)
        y, mean, inv_variance, *running = self._add_all(node, compute_data_type, name)
        return (y, mean, inv_variance, *(running or (None, None)))

    @operation
    def bn_finalize(
        self,
        sum: Tensor,
        sq_sum: Tensor,
        scale: Tensor,
        bias: Tensor,
        epsilon: Operand,
        accum_count: Operand,
        in_running_mean: Tensor | None = None,
        in_running_var: Tensor | None = None,
        momentum: Operand | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """(EQ_SCALE, EQ_BIAS, mean, inv_variance, next running mean, next running variance) of each channel from the
        sums of ``genstats`` over accum_count elements, a by-value tensor: x * EQ_SCALE + EQ_BIAS is the batch norm."""
        given = {
            "sum": sum,
            "sum_of_squares": sq_sum,
            "scale": scale,
            "bias": bias,
            "epsilon": self._scalar(epsilon, "epsilon"),
            "accum_count": self._scalar(accum_count, "accum_count"),
            "exp_avg_factor": self._scalar(momentum, "momentum"),
            "input_running_mean": in_running_mean,
            "input_running_var": in_running_var,
        }
        made: tuple[str, ...] = ("eq_scale", "eq_bias", "mean", "inv_std")
        if in_running_mean is not None or in_running_var is not None:
            made += ("output_running_mean", "output_running_var")
        node = BnFinalizeNode(_present(given), made)
        eq_scale, eq_bias, mean, inv_variance, *running = self._add_all(node, compute_data_type, name)
        next_mean, next_var = running or (None, None)
        return eq_scale, eq_bias, mean, inv_variance, next_mean, next_var

    @operation
    def batchnorm_inference(
        self,
        input: Tensor,
        mean: Tensor,
        inv_variance: Tensor,
        scale: Tensor,
        bias: Tensor,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> Tensor:
        """(input - mean) * inv_variance * scale + bias: four pointwise operations."""
        value, label = input, self._label(name)
        steps = ((PointwiseMode.SUB, mean), (PointwiseMode.MUL, inv_variance), (PointwiseMode.MUL, scale))
        for number, (mode, operand) in enumerate((*steps, (PointwiseMode.ADD, bias))):
            node = PointwiseNode(mode, (value, operand), PointwiseParameters())
            value = self._add(node, compute_data_type, f"{label}::{number}")
        return value.set_name(f"{label}::Y")

    @operation
    def layernorm_backward(
        self,
        grad: Tensor,
        input: Tensor,
        scale: Tensor | None = None,
        mean: Tensor | None = None,
        inv_variance: Tensor | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(DX, DScale, DBias) of ``layernorm``."""
        return self._gradients(NormMode.LAYER_NORM, grad, input, scale, mean, inv_variance, compute_data_type, name)

    @operation
    def adalayernorm_backward(
        self,
        grad: Tensor,
        input: Tensor,
        scale: Tensor,
        mean: Tensor,
        inv_variance: Tensor,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(DX, DScale, DBias) of ``adalayernorm``."""
        return self._gradients(NormMode.ADA_LAYER_NORM, grad, input, scale, mean, inv_variance, compute_data_type, name)

    @operation
    def instancenorm_backward(
        self,
        grad: Tensor,
        input: Tensor,
        scale: Tensor,
        mean: Tensor | None = None,
        inv_variance: Tensor | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(DX, DScale, DBias) of ``instancenorm``; mean and inv_variance are needed."""
        return self._gradients(NormMode.INSTANCE_NORM, grad, input, scale, mean, inv_variance, compute_data_type, name)

    @operation
    def groupnorm_backward(
        self,
        grad: Tensor,
        input: Tensor,
        scale: Tensor | None,
        mean: Tensor,
        inv_variance: Tensor,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(DX, DScale, DBias) of ``groupnorm``."""
        return self._gradients(NormMode.GROUP_NORM, grad, input, scale, mean, inv_variance, compute_data_type, name)

    @operation
    def batchnorm_backward(
        self,
        grad: Tensor,
        input: Tensor,
        scale: Tensor,
        mean: Tensor,
        inv_variance: Tensor,
        peer_stats: Sequence[Tensor] = (),
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(DX, DScale, DBias) of ``batchnorm``, also with its peer_stats: DScale and DBias are this rank's own sums."""
        peers = _peer_ports("batchnorm_backward", peer_stats)
        return self._gradients(
            NormMode.BATCH_NORM, grad, input, scale, mean, inv_variance, compute_data_type, name, peers=peers
        )

    @operation
    def rmsnorm_backward(
        self,
        grad: Tensor,
        input: Tensor,
        scale: Tensor | None = None,
        inv_variance: Tensor | None = None,
        has_dbias: bool = False,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(DX, DScale, DBias) of ``rmsnorm``; DBias where has_dbias."""
        has_dbias = boolean(has_dbias, "rmsnorm_backward.has_dbias")
        return self._gradients(
            NormMode.RMS_NORM, grad, input, scale, None, inv_variance, compute_data_type, name, has_dbias
        )

    @operation
    def lrn(
        self,
        input: Tensor,
        lrn_n: int = 5,
        lrn_alpha: float = 1e-4,
        lrn_beta: float = 0.75,
        lrn_k: float = 2.0,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> Tensor:
        """``input`` (N, C, spatial...) times (lrn_k + lrn_alpha / lrn_n * sum of its squares)^-lrn_beta.

        The sum is over the lrn_n channels around each one, those that exist (``ops.lrn``).
        """
        parameters = self._local(lrn_n, lrn_alpha, lrn_beta, lrn_k)
        return self._add(AlikeNode({"x": input}, ("y",), LrnForward, parameters), compute_data_type, name)

    @operation
    def lrn_backward(
        self,
        grad: Tensor,
        input: Tensor,
        lrn_n: int = 5,
        lrn_alpha: float = 1e-4,
        lrn_beta: float = 0.75,
        lrn_k: float = 2.0,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> Tensor:
        """The gradient of ``lrn``'s input from ``grad``, that of its output, and the arguments that it had."""
        parameters = self._local(lrn_n, lrn_alpha, lrn_beta, lrn_k)
        node = AlikeNode({"x": input, "dy": grad}, ("dx",), LrnBackward, parameters)
        return self._add(node, compute_data_type, name)

    @operation
    def divisive_normalization(
        self,
        input: Tensor,
        means: Tensor | None = None,
        lrn_n: int = 5,
        lrn_alpha: float = 1e-4,
        lrn_beta: float = 0.75,
        lrn_k: float = 2.0,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> Tensor:
        """``input`` (N, C, spatial...) times (lrn_k + lrn_alpha / lrn_n^spatial * sum of (input - means)^2)^-lrn_beta.

        The sum is over the lrn_n places along each spatial axis around an element (``ops.divisive_normalization``).
        """
        parameters = self._local(lrn_n, lrn_alpha, lrn_beta, lrn_k)
        given = _present({"x": input, "means": means})
        node = AlikeNode(given, ("y",), DivisiveNormalizationForward, parameters)
        return self._add(node, compute_data_type, name)

    @operation
    def divisive_normalization_backward(
        self,
        grad: Tensor,
        input: Tensor,
        means: Tensor | None = None,
        lrn_n: int = 5,
        lrn_alpha: float = 1e-4,
        lrn_beta: float = 0.75,
        lrn_k: float = 2.0,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor | None]:
        """(DX, DMeans): the gradients of ``divisive_normalization``'s input and means, None without means.

        grad: the type of its output. The other arguments are those that it had.
        """
        parameters = self._local(lrn_n, lrn_alpha, lrn_beta, lrn_k)
        given = _present({"x": input, "dy": grad, "means": means})
        made = ("dx",) if means is None else ("dx", "dmeans")
        node = AlikeNode(given, made, DivisiveNormalizationBackward, parameters)
        dx, *others = self._add_all(node, compute_data_type, name)
        return dx, others[0] if others else None

    def _local(self, lrn_n: int, lrn_alpha: float, lrn_beta: float, lrn_k: float) -> dict[str, int | float]:
        """The parameters of a normalisation over neighbours, as numbers of Python."""
        factors = {"lrn_alpha": lrn_alpha, "lrn_beta": lrn_beta, "lrn_k": lrn_k}
        method = self._call.method
        found = {name: real(value, f"{method}.{name}") for name, value in factors.items()}
        return {"lrn_n": integer(lrn_n, f"{method}.lrn_n"), **found}

    def _scalar(self, value: Operand | None, argument: str) -> Tensor | None:
        """The tensor of an argument; a number becomes a constant of the graph, an integer if it is a count."""
        if value is None or isinstance(value, Tensor):
            return value
        where = f"{self._call.method}.{argument}"
        found = integer(value, where) if argument == "accum_count" else real(value, where)
        return self.tensor_scalar(found, scalar_type.COMPILE_TIME_CONST)

    def _norm(
        self,
        method: str,
        mode: NormMode,
        phase: norm_forward_phase,
        x: Tensor,
        scale: Tensor | None,
        bias: Tensor | None,
        epsilon: Operand | None,
        compute_data_type: DataTypeLike,
        name: str,
        groups: int = 0,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        if epsilon is None:
            raise BadParamError.at(f"{method}.epsilon", expected="a by-value tensor or a number", got="None")
        chosen = backend_norm_phase(phase, method)
        statistics = ("inv_variance",) if mode is NormMode.RMS_NORM else ("mean", "inv_variance")
        made = ("y", *statistics) if chosen is NormFwdPhase.TRAINING else ("y",)
        given = _present({"x": x, "epsilon": self._scalar(epsilon, "epsilon"), "scale": scale, "bias": bias})
        outputs = self._add_all(NormForwardNode(given, made, mode, chosen, groups), compute_data_type, name)
        found = dict(zip(made, outputs, strict=True))
        return found["y"], found.get("mean"), found.get("inv_variance")

    def _gradients(
        self,
        mode: NormMode,
        dy: Tensor,
        x: Tensor,
        scale: Tensor | None,
        mean: Tensor | None,
        inv_variance: Tensor | None,
        compute_data_type: DataTypeLike,
        name: str,
        has_dbias: bool = True,
        peers: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(DX, DScale, DBias); DScale and DBias only where there is a scale."""
        given = _present({"x": x, "dy": dy, "mean": mean, "inv_variance": inv_variance, "scale": scale})
        given |= peers or {}
        made = ("dx",) if scale is None else ("dx", "dscale", "dbias") if has_dbias else ("dx", "dscale")
        outputs = self._add_all(NormBackwardNode(given, made, mode), compute_data_type, name)
        found = dict(zip(made, outputs, strict=True))
        return found["dx"], found.get("dscale"), found.get("dbias")


def _present(given: dict[str, Tensor | None]) -> dict[str, Tensor]:
    return {port: tensor for port, tensor in given.items() if tensor is not None}


def _peer_ports(method: str, peer_stats: Sequence[Tensor]) -> dict[str, Tensor]:
    peers = sequence(peer_stats, f"{method}.peer_stats", "tensors")
    return {f"peer_stats[{number}]": tensor for number, tensor in enumerate(peers)}
