"""Norms and softmax through PyTorch: its own kernels and cuDNN's, called below autograd, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import torch

from lowdnn.cases.families.rows import NormCase, SoftmaxCase
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from tools.bench.data import TORCH_TYPES, CaseData
from tools.bench.peers.membound import run_chain

_aten = torch.ops.aten

Tensors = Sequence[torch.Tensor]
Peer = Callable[[int], Tensors]

#: A function of (x, slot) that gives y and the statistics.
_Forward = Callable[[torch.Tensor, int], Tensors]

_ALL = [True, True, True]

#: By library, of (x, scale, bias, running mean, running variance, training, momentum, epsilon): y, mean, inverse, more.
_BATCH_NORMS = {"torch": _aten.native_batch_norm, "cudnn": _aten.cudnn_batch_norm}

#: An argument that a backward pass is given and does not use.
_EPSILON = 1e-5


def norm_peers(case: NormCase, data: CaseData) -> dict[str, Peer]:
    """The peers of a norm that stores its statistics, with scale (and, but for RMS norms, bias).

    Its steps before and behind are kernels of their own; a backward pass has none. torch's group norm is one of the
    peers of instance norms, with groups of one channel.
    """
    parameters = "scale" if case.mode == "rms" else "both"
    if case.phase != "training" or case.running == "yes" or case.scale != parameters or case.mode not in _FORWARD:
        raise ValueError(f"{case}: expected scale={parameters}, statistics and no running ones, for the peer's sake")
    if case.dir == "bwd":
        if case.before or case.epilogue:
            raise ValueError(f"{case}: expected a gradient alone, for the peer's sake")
        return _BACKWARD[case.mode](case, data)
    norms = _FORWARD[case.mode](case, data)
    return {name: _with_steps(case, data, norm) for name, norm in norms.items()}


def softmax_peers(case: SoftmaxCase, data: CaseData) -> dict[str, Peer]:
    """torch's softmax over one axis, its steps before and behind as kernels of their own, or its gradient alone."""
    axes = case.axes or (len(case.dims) - 1,)
    if len(axes) != 1 or case.stats is not None or (case.dir == "bwd" and (case.before or case.epilogue)):
        raise ValueError(f"{case}: expected one axis, no statistics and no steps around a gradient, as the peer has")
    (axis,), is_log = axes, case.log == "yes"
    if case.dir == "bwd":
        gradient = _aten._log_softmax_backward_data if is_log else _aten._softmax_backward_data
        dy, y, dtype = data["dy"], data["y"], TORCH_TYPES[case.dtype]
        return {"torch": lambda slot: [gradient(dy[slot], y[slot], axis, dtype)]}
    softmax, x, others = torch.log_softmax if is_log else torch.softmax, data["x"], data.inputs(but=["x"])

    def forward(slot: int) -> Tensors:
        operands = (copies[slot] for copies in others)
        value, first = run_chain(case.before, x[slot], operands)
        y, stored = run_chain(case.epilogue, softmax(value, axis), operands)
        return [*first, *stored, y]

    return {"torch": forward}


def _with_steps(case: NormCase, data: CaseData, norm: _Forward) -> Peer:
    """Its results in the order of the graph's outputs."""
    x, others = data["x"], data.inputs(but=["x", "scale", "bias"])

    def launch(slot: int) -> Tensors:
        operands = (copies[slot] for copies in others)
        value, first = run_chain(case.before, x[slot], operands)
        y, *statistics = norm(value, slot)
        if not case.epilogue:
            return [*first, y, *statistics]
        y, stored = run_chain(case.epilogue, y, operands)
        return [*first, *statistics, *stored, y]

    return launch


def _layer_forward(case: NormCase, data: CaseData) -> dict[str, _Forward]:
    dims, epsilon = _row_dims(case), _epsilon(case)
    scale, bias = (_parameter(data, name, dims, case) for name in ("scale", "bias"))
    return {"torch": lambda x, slot: _aten.native_layer_norm(x, dims, scale[slot], bias[slot], epsilon)}


def _rms_forward(case: NormCase, data: CaseData) -> dict[str, _Forward]:
    dims, epsilon = _row_dims(case), _epsilon(case)
    scale = _parameter(data, "scale", dims, case)
    return {"torch": lambda x, slot: _aten._fused_rms_norm(x, dims, scale[slot], epsilon)}


def _batch_forward(case: NormCase, data: CaseData) -> dict[str, _Forward]:
    (scale, bias), epsilon = (_channels(data, name) for name in ("scale", "bias")), _epsilon(case)

    def with_kernel(kernel: Callable[..., Tensors]) -> _Forward:
        return lambda x, slot: kernel(x, scale[slot], bias[slot], None, None, True, 0.0, epsilon)[:3]

    return {name: with_kernel(kernel) for name, kernel in _BATCH_NORMS.items()}


def _instance_forward(case: NormCase, data: CaseData) -> dict[str, _Forward]:
    """As torch does it: a batch norm of one image with a channel for each row."""
    (scale, bias), epsilon = (_channels(data, name) for name in ("scale", "bias")), _epsilon(case)

    def with_kernel(kernel: Callable[..., Tensors]) -> _Forward:
        def forward(x: torch.Tensor, slot: int) -> Tensors:
            parameters = scale[slot].repeat(x.shape[0]), bias[slot].repeat(x.shape[0])
            y, mean, inverse = kernel(_one_image(x), *parameters, None, None, True, 0.0, epsilon)[:3]
            return y.view(x.shape), mean.view(x.shape[:2]), inverse.view(x.shape[:2])

        return forward

    return {name: with_kernel(kernel) for name, kernel in _BATCH_NORMS.items()} | {
        f"{name} group norm": forward for name, forward in _group_forward(case, data).items()
    }


def _group_forward(case: NormCase, data: CaseData) -> dict[str, _Forward]:
    """torch's kernel takes contiguous images only: its ``group_norm`` copies others first, and so do its peers here."""
    (n, c, *spatial), epsilon = case.dims, _epsilon(case)
    scale, bias = (_parameter(data, name, [c], case) for name in ("scale", "bias"))
    shape = (n, c, prod(spatial), case.groups or c)
    return {
        "torch": lambda x, slot: _aten.native_group_norm(x.contiguous(), scale[slot], bias[slot], *shape, epsilon),
    }


def _layer_backward(case: NormCase, data: CaseData) -> dict[str, Peer]:
    dims, x, dy, mean, inverse = _row_dims(case), data["x"], data["dy"], data["mean"], data["inv_variance"]
    scale = _parameter(data, "scale", dims, case)

    def torchs(slot: int) -> Tensors:
        statistics, parameters = (
            (mean[slot], inverse[slot]),
            (scale[slot], scale[slot]),
        )  # the call reads the dims of a bias alone
        return _aten.native_layer_norm_backward(dy[slot], x[slot], dims, *statistics, *parameters, _ALL)

    return {"torch": torchs}


def _rms_backward(case: NormCase, data: CaseData) -> dict[str, Peer]:
    dims, x, dy, inverse = _row_dims(case), data["x"], data["dy"], data["inv_variance"]
    scale = _parameter(data, "scale", dims, case)

    def torchs(slot: int) -> Tensors:
        return _aten._fused_rms_norm_backward(dy[slot], x[slot], dims, inverse[slot], scale[slot], _ALL[:2])

    return {"torch": torchs}


def _batch_backward(case: NormCase, data: CaseData) -> dict[str, Peer]:
    x, dy = data["x"], data["dy"]
    scale, mean, inverse = (_channels(data, name) for name in ("scale", "mean", "inv_variance"))

    def with_gradient(gradient: Callable[..., Tensors]) -> Peer:
        return lambda slot: gradient(dy[slot], x[slot], scale[slot], mean[slot], inverse[slot])

    return {name: with_gradient(gradient) for name, gradient in _batch_gradients().items()}


def _instance_backward(case: NormCase, data: CaseData) -> dict[str, Peer]:
    x, dy, (n, c) = data["x"], data["dy"], case.dims[:2]
    scale, mean, inverse = (_channels(data, name) for name in ("scale", "mean", "inv_variance"))

    def with_gradient(gradient: Callable[..., Tensors]) -> Peer:
        def backward(slot: int) -> Tensors:
            rows = _one_image(dy[slot]), _one_image(x[slot]), scale[slot].repeat(n), mean[slot], inverse[slot]
            dx, dscale, dbias = gradient(*rows)
            return dx.view(case.dims), dscale.view(n, c).sum(0), dbias.view(n, c).sum(0)

        return backward

    return {name: with_gradient(gradient) for name, gradient in _batch_gradients().items()} | {
        f"{name} group norm": peer for name, peer in _group_backward(case, data).items()
    }


def _group_backward(case: NormCase, data: CaseData) -> dict[str, Peer]:
    x, dy, (n, c, *spatial) = data["x"], data["dy"], case.dims
    shape = (n, c, prod(spatial), case.groups or c)
    scale = _parameter(data, "scale", [c], case)
    mean, inverse = (_parameter(data, name, [n, shape[3]], case) for name in ("mean", "inv_variance"))

    def torchs(slot: int) -> Tensors:
        images = dy[slot].contiguous(), x[slot].contiguous()
        tensors = *images, mean[slot], inverse[slot], scale[slot]
        return _aten.native_group_norm_backward(*tensors, *shape, _ALL)

    return {"torch": torchs}


def _batch_gradients() -> dict[str, Callable[..., Tensors]]:
    """By library, of (dy, x, scale, mean, inverse): (dx, dscale, dbias). For inputs of one shape."""
    reserves: list[torch.Tensor] = []

    def torchs(dy: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, *statistics: torch.Tensor) -> Tensors:
        return _aten.native_batch_norm_backward(dy, x, scale, None, None, *statistics, True, _EPSILON, _ALL)

    def cudnns(dy: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, *statistics: torch.Tensor) -> Tensors:
        if not reserves:  # the first launch is not timed
            reserves.append(_aten.cudnn_batch_norm(x, scale, scale, None, None, True, 0.0, _EPSILON)[3])
        return _aten.cudnn_batch_norm_backward(x, dy, scale, None, None, *statistics, _EPSILON, reserves[0])

    return {"torch": torchs, "cudnn": cudnns}


def _one_image(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(1, -1, *x.shape[2:])


def _channels(data: CaseData, name: str) -> list[torch.Tensor]:
    """The copies of an input, flat and in fp32, in which batch norms take parameters and statistics."""
    return [copy.flatten() for copy in data[name]]


def _parameter(data: CaseData, name: str, dims: list[int], case: NormCase) -> list[torch.Tensor]:
    """The copies of an input in these dims and in x's type, in which torch's other norms take it."""
    return [copy.reshape(dims).to(TORCH_TYPES[case.dtype]) for copy in data[name]]


def _row_dims(case: NormCase) -> list[int]:
    axes, rank = _operation(case).shape.axes, len(case.dims)
    if case.layout != "row" or axes != tuple(range(rank - len(axes), rank)):
        raise ValueError(f"{case}: expected the last axes of a row-major tensor, for the peer's sake")
    return [case.dims[axis] for axis in axes]


def _epsilon(case: NormCase) -> float:
    operation = _operation(case)
    assert isinstance(operation, NormForward)
    assert operation.epsilon.constant_value is not None
    return operation.epsilon.constant_value


def _operation(case: NormCase) -> NormForward | NormBackward:
    return next(op for op in case.graph().operations if isinstance(op, NormForward | NormBackward))


_FORWARD: Mapping[str, Callable[[NormCase, CaseData], dict[str, _Forward]]] = {
    "layer": _layer_forward,
    "rms": _rms_forward,
    "batch": _batch_forward,
    "instance": _instance_forward,
    "group": _group_forward,
}
_BACKWARD: Mapping[str, Callable[[NormCase, CaseData], dict[str, Peer]]] = {
    "layer": _layer_backward,
    "rms": _rms_backward,
    "batch": _batch_backward,
    "instance": _instance_backward,
    "group": _group_backward,
}
