"""Convolution through PyTorch, channels-last: cuDNN's best algorithm, and torch's own kernels where they may be better.

Every convolution is handed over with at least two spatial axes: torch knows no channels-last layout of one. Depthwise
ones of lines are handed over in both layouts, since it depends on the filter which one is faster.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence

import torch

from lowdnn.cases.families.convolution import ConvolutionCase
from tools.bench.data import CaseData
from tools.bench.peers.cudnn import fused_convolution

_aten = torch.ops.aten
_ACTIVATIONS = {"relu": torch.relu, "swish": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}

Peer = Callable[[int], torch.Tensor]
Form = Callable[[list[torch.Tensor]], list[torch.Tensor]]


def convolution_peers(case: ConvolutionCase, data: CaseData) -> dict[str, Peer]:
    """The peers of a convolution in its direction, or fused with its epilogue."""
    if case.epilogue:
        return _fused(case, data)
    made = _made(case)
    if not case.groups == case.c > 1:
        return {"cudnn": made(case, data, _planes)}
    forms: dict[str, Form] = {"": _planes}
    if len(case.hw) == 1:
        forms = {" nchw": _channels_first, " nhwc": _channels_last}
    peers = {f"cudnn{name}": made(case, data, form) for name, form in forms.items()}
    return peers | {f"torch{name}": _without_cudnn(made(case, data, form)) for name, form in forms.items()}


def contiguous_peer(case: ConvolutionCase, data: CaseData) -> Peer:
    """cuDNN with every channel's pixels side by side; operands are copied to that layout beforehand."""
    return _made(case)(case, data, _contiguous)


def spectral_peer(case: ConvolutionCase, data: CaseData) -> Peer:
    """A causal depthwise convolution along a sequence by ``torch.fft``; its result is fp32.

    case: the forward pass with stride 1 and a padding of taps - 1 before the sequence alone. Raises ValueError for
    others.
    """
    length, taps = case.hw[0], case.rs[0]
    is_plain = case.dir == "fprop" and case.groups == case.c == case.k and (*case.stride, *case.dil) == (1, 1)
    if len(case.hw) != 1 or not is_plain or case.pad != ((taps - 1, 0),):
        raise ValueError(f"{case}: expected a causal depthwise convolution along a sequence")
    x, w = ([t.contiguous() for t in data[name]] for name in ("x", "w"))
    points = 1 << (length + taps - 2).bit_length()

    def launch(slot: int) -> torch.Tensor:
        spectrum = torch.fft.rfft(x[slot].float(), n=points)
        response = torch.fft.rfft(w[slot].float().squeeze(1).flip(-1), n=points)
        return torch.fft.irfft(spectrum * response, n=points)[..., :length]

    return launch


def subquadratic_peer(case: ConvolutionCase, data: CaseData) -> Peer | None:
    """The convolution of ``spectral_peer`` by the package ``subquadratic_ops_torch``; None where it is not installed.

    It has filters that begin with the current position, which are made beforehand.
    """
    if importlib.util.find_spec("subquadratic_ops_torch") is None:
        return None
    convolve = importlib.import_module("subquadratic_ops_torch.fft_causal_conv1d").fft_causal_conv1d
    x, filters = data["x"], [w.squeeze(1).flip(-1).contiguous() for w in data["w"]]
    return lambda slot: convolve(x[slot], filters[slot])


def exact_peer(case: ConvolutionCase, data: CaseData) -> Peer:
    """The convolution in float64, without an epilogue."""
    return _made(case)(case, data, _doubled)


def geometry_of(case: ConvolutionCase) -> tuple[list[int], list[int], list[int]]:
    """(strides, paddings, dilations) of two or three spatial axes."""
    spatial = len(case.hw)
    if any(before != after for before, after in case.pad):
        raise ValueError(f"{case}: expected the same padding on both sides, for the peer's sake")

    def axes(values: Sequence[int], unused: int) -> list[int]:
        every = list(values) * (spatial if len(values) == 1 else 1)
        return [unused, *every] if spatial == 1 else every

    return axes(case.stride, 1), axes([before for before, _ in case.pad], 0), axes(case.dil, 1)


def _made(case: ConvolutionCase) -> Callable[[ConvolutionCase, CaseData, Form], Peer]:
    return {"fprop": _forward, "dgrad": _backward_data, "wgrad": _backward_filter}[case.dir]


def _forward(case: ConvolutionCase, data: CaseData, form: Form) -> Peer:
    x, w = form(data["x"]), form(data["w"])
    shape = _shape(case)
    return lambda slot: _in_dims(_aten.convolution(x[slot], w[slot], None, *shape), data)


def _backward_data(case: ConvolutionCase, data: CaseData, form: Form) -> Peer:
    # The call reads the shape and the layout of x alone.
    x, w, dy = form(data.results()), form(data["w"]), form(data["dy"])
    shape, mask = _shape(case), [True, False, False]
    return lambda slot: _in_dims(_aten.convolution_backward(dy[slot], x[slot], w[slot], None, *shape, mask)[0], data)


def _backward_filter(case: ConvolutionCase, data: CaseData, form: Form) -> Peer:
    # The call reads the shape and the layout of w alone.
    x, w, dy = form(data["x"]), form(data.results()), form(data["dy"])
    shape, mask = _shape(case), [False, True, False]
    return lambda slot: _in_dims(_aten.convolution_backward(dy[slot], x[slot], w[slot], None, *shape, mask)[1], data)


def _fused(case: ConvolutionCase, data: CaseData) -> dict[str, Peer]:
    """bias, an optional residual, an activation: in one kernel of cuDNN where it has one, and in several."""
    x, w, bias, residual = _planes(data["x"]), _planes(data["w"]), data.bias(), data.residual()
    z = _planes(residual) if residual else None
    stride, padding, dilation = geometry_of(case)

    def steps(slot: int) -> torch.Tensor:
        result = _aten.convolution(x[slot], w[slot], bias[slot], *_shape(case))
        result = result if z is None else result.add_(z[slot])
        return _in_dims(_ACTIVATIONS[case.epilogue[-1]](result), data)

    def relu(slot: int) -> torch.Tensor:
        geometry = (bias[slot], stride, padding, dilation, case.groups)
        if z is None:
            return _in_dims(_aten.cudnn_convolution_relu(x[slot], w[slot], *geometry), data)
        return _in_dims(_aten.cudnn_convolution_add_relu(x[slot], w[slot], z[slot], 1.0, *geometry), data)

    peers: dict[str, Peer] = {"cudnn + torch": steps}
    if case.epilogue[-1] == "relu":
        peers["cudnn fused"] = relu
    if importlib.util.find_spec("cudnn") is not None:
        peers["cudnn graph"] = fused_convolution(case, data, *geometry_of(case))
    return peers


def _without_cudnn(peer: Peer) -> Peer:
    def launch(slot: int) -> torch.Tensor:
        with torch.backends.cudnn.flags(enabled=False):
            return peer(slot)

    return launch


def _shape(case: ConvolutionCase) -> tuple[object, ...]:
    """The arguments of torch's convolutions behind the tensors: geometry, not transposed, groups."""
    stride, padding, dilation = geometry_of(case)
    return stride, padding, dilation, False, [0] * len(stride), case.groups


def _planes(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """(N, C, L) as channels-last (N, C, 1, L); others as they are."""
    if tensors[0].ndim != 3:
        return tensors
    return [
        t.as_strided((*t.shape[:2], 1, t.shape[2]), (t.stride(0), 1, t.stride(0), t.stride(2)), t.storage_offset())
        for t in tensors
    ]


def _doubled(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return _contiguous([t.double() for t in tensors])


def _contiguous(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return _channels_first(tensors) if tensors[0].ndim == 3 else [t.contiguous() for t in tensors]


def _channels_first(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """(N, C, L) as (N, C, 1, L), copied; of strides of single channels torch would take a filter for channels-last."""
    return [
        torch.empty((*t.shape[:2], 1, t.shape[2]), dtype=t.dtype, device=t.device).copy_(t[:, :, None]) for t in tensors
    ]


def _channels_last(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """(N, C, L) as channels-last (N, C, 1, L), copied where channels are not neighbours."""
    return _planes([t.unsqueeze(2).contiguous(memory_format=torch.channels_last).squeeze(2) for t in tensors])


def _in_dims(result: torch.Tensor, data: CaseData) -> torch.Tensor:
    return result.squeeze(2) if result.ndim > len(data.output.dims) else result
