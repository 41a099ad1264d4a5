"""Recurrent networks of several layers and their gradients: PyTorch's entries to cuDNN for RNN, LSTM and GRU.

A training pass leaves its gates and cell states in the reserve, in lowdnn's form, for the gradients. Such a reserve has
two axes, and cuDNN's has one: neither kernel reads the other's. Masks of dropout follow from two numbers of torch's
generator, which the reserve has, too: they are not those that cuDNN would draw.
Packed sequences are (rows, size): the rows of all sequences at the first step, then those at the second, and so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from lowdnn.enums import PointwiseMode
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.ops.rnn_backward_weights import RnnBackwardWeights
from lowdnn.ops.rnn_forward import RnnForward
from lowdnn.ops.rnn_saved import reserve_space, reserve_space_bytes
from lowdnn.ops.rnn_weights import Region, WeightSpace
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.rnn_enums import DirectionMode, RNNBiasMode, RNNMode
from lowdnn.status import NotSupportedError
from lowdnn.torch.operation import Arguments, Overload, Piece, Result, optional
from lowdnn.torch.sketch import DATA_TYPES, Declined, Dims, Sketch, check_floats, data_type_of

_X, _W, _HX, _CX, _LENGTHS, _RANDOM = range(6)
_Y, _DY, _DHY, _DCY, _RESERVE = range(5, 10)
_DTYPES = {data_type: dtype for dtype, data_type in DATA_TYPES.items()}
#: Gradients of these are asked for by a mask, in this order, and those of the weights last.
_ASKED = ("x", "hx", "cx")


class Network(NamedTuple):
    """PyTorch's arguments behind the states.

    offsets: the weights' places in their buffer, in elements, None without one.
    packed: steps of the longest sequence and their number, where they are packed.
    """

    offsets: Dims | None
    has_bias: bool
    mode: int
    hidden_size: int
    projection_size: int
    layers: int
    batch_first: bool
    dropout: float
    is_training: bool
    is_bidirectional: bool
    packed: tuple[int, int] | None

    @property
    def drops(self) -> bool:
        return self.dropout > 0 and self.is_training and self.layers > 1


def read(x: Any, weight: Sequence[Any], weights_of_layer: int, buffer: Any, hx: Any, cx: Any, *rest: Any) -> Arguments:
    tensors, (network,) = _read(x, weight, weights_of_layer, buffer, hx, cx, *rest)
    # Numbers below 2^53 are exact in any type that a kernel may copy them in.
    numbers = torch.empty(2, dtype=torch.int64, device=x.device).random_(1 << 53) if network.drops else None
    return (*tensors, optional(numbers)), (network,)


def read_backward(
    x: Any, weight: Sequence[Any], weights_of_layer: int, buffer: Any, hx: Any, cx: Any, y: Any, dy: Any, dhy: Any,
    dcy: Any, *rest: Any,
) -> Arguments:  # fmt: skip
    *network, reserve, mask = rest
    tensors, numbers = _read(x, weight, weights_of_layer, buffer, hx, cx, *network)
    gradient = torch.zeros_like(y) if dy is None else dy
    gradients = gradient.contiguous(), _contiguous(dhy), _contiguous(dcy)
    shapes = tuple([tuple(own.shape) for own in weight])
    return (*tensors, y.contiguous(), *gradients, reserve), (*numbers, tuple(mask), shapes)


def _read(
    x: Any, weight: Sequence[Any], weights_of_layer: int, buffer: Any, hx: Any, cx: Any, *rest: Any
) -> tuple[tuple[Any, ...], tuple[Network]]:
    *numbers, batch_sizes, _dropout_state = rest
    has_bias = weights_of_layer >= 4  # two matrices and two biases, and perhaps a projection
    packed = (len(batch_sizes), batch_sizes[0]) if batch_sizes else None
    network = Network._make((_offsets(weight, buffer), has_bias, *numbers, packed))
    lengths = _lengths(batch_sizes, x.device) if batch_sizes else None
    tensors = x.contiguous(), optional(buffer), hx.contiguous(), _contiguous(cx), optional(lengths)
    return tensors, (network,)


def forward(sketch: Sketch, network: Network) -> Result:
    """(y, hy, cy, reserve, weights)"""
    own = _Tensors(sketch, network, (_X, _W, _HX, _CX))
    rnn, x = own.rnn, sketch.tensors[_X]
    y = sketch.allocate((*x.shape[:-1], rnn.output_size), x.dtype)
    hy = sketch.allocate(sketch.tensors[_HX].shape, x.dtype)
    cy = sketch.allocate(sketch.tensors[_CX].shape if rnn.is_lstm else (0,), x.dtype)
    size_bytes = reserve_space_bytes(rnn, own.data_type)
    reserve = sketch.allocate((1, size_bytes) if network.is_training else (0,), torch.uint8)
    places = {"x": _X, "y": y, "w": _W, "hx": _HX, "hy": hy, "cx": _CX, "cy": cy, "seq_lengths": _LENGTHS}
    saved = own.saved(reserve) if network.is_training else {}
    if network.drops:
        for number, port in enumerate(("dropout_seed", "dropout_offset")):
            given = sketch.part(_RANDOM, 8 * number, (1,), torch.int64)
            sketch.pointwise(PointwiseMode.IDENTITY, sketch.at(saved[port]), sketch.at(given))
        sketch.end_step()
    sketch.add(RnnForward.of(rnn, own.tensors(places | saved), is_training=network.is_training))
    sketch.end_step()
    return y, hy, cy, reserve, _W


def backward(sketch: Sketch, network: Network, mask: tuple[bool, ...], shapes: tuple[Dims, ...]) -> Result:
    """(dx, dhx, dcx, gradients of the weights)

    shapes: the weights' own; under autocast they are columns.
    """
    own = _Tensors(sketch, network, (_X, _W, _HX, _CX, _Y, _DY, _DHY, _DCY))
    rnn, reserve = own.rnn, sketch.tensors[_RESERVE]
    if len(reserve.shape) != 2 or reserve.shape[1] != reserve_space_bytes(rnn, own.data_type):
        raise Declined("gradients of a forward pass that did not run on lowdnn")
    saved = own.saved(_RESERVE)
    wanted = {"x": _X, "hx": _HX} | ({"cx": _CX} if rnn.is_lstm else {})
    gradients = {
        port: sketch.allocate(sketch.tensors[place].shape, sketch.tensors[_X].dtype) for port, place in wanted.items()
    }
    places = {"y": _Y, "dy": _DY, "dhy": _DHY, "dcy": _DCY, "w": _W, "hx": _HX, "cx": _CX}
    places["seq_lengths"] = _LENGTHS
    results = {f"d{port}": place for port, place in gradients.items()}
    sketch.add(RnnBackwardData.of(rnn, own.tensors(places | saved | results)))
    sketch.end_step()
    asked = [gradients.get(port) if is_asked else None for port, is_asked in zip(_ASKED, mask, strict=False)]
    if not mask[3]:
        return *asked, []
    dw = sketch.allocate(sketch.tensors[_W].shape, sketch.tensors[_X].dtype)
    read = {"x": _X, "y": _Y, "hx": _HX, "seq_lengths": _LENGTHS}
    sketch.add(RnnBackwardWeights.of(rnn, own.tensors({**read, "dw": dw, **saved})))
    sketch.end_step()
    pieces = [
        Piece(dw, shape, packed_strides(shape), region.offset)
        for region, shape in zip(own.regions, shapes, strict=True)
    ]
    return *asked, pieces


def backward_native(native: Callable[..., Any], keys: Any, *args: Any) -> Any:
    """cuDNN cannot read what lowdnn has left for the gradients."""
    if args[-2].dim() == 2:
        raise NotSupportedError.at(
            "torch._cudnn_rnn_backward.reserve",
            expected="what cuDNN has saved, for gradients that lowdnn does not compute",
            got="what lowdnn has saved",
            hint="keep lowdnn.torch enabled from the forward pass to its gradients; explain() says what it declined",
        )
    return native(keys, *args)


class _Tensors:
    """The operation's network and its tensors. Declines calls that lowdnn does not take.

    floats: the places of all that have the type of x.
    """

    def __init__(self, sketch: Sketch, network: Network, floats: Sequence[int]) -> None:
        x = sketch.tensors[_X]
        check_floats(*(sketch.tensors[place] for place in floats))
        if len(x.shape) != (3 if network.packed is None else 2):
            raise Declined(f"sequences of dims {list(x.shape)}")
        self._sketch, self._batch_first = sketch, network.batch_first and network.packed is None
        self.data_type = data_type_of(x.dtype)
        length, batch = network.packed or (x.shape[1::-1] if network.batch_first else x.shape[:2])
        self.rnn = Rnn(
            RNNMode(network.mode), length, batch, x.shape[-1], network.hidden_size, network.projection_size,
            network.layers, DirectionMode(int(network.is_bidirectional)),
            RNNBiasMode.DOUBLE_BIAS if network.has_bias else RNNBiasMode.NO_BIAS,
            dropout_probability=network.dropout if network.drops else 0.0,
            uses_tf32=sketch.allows_tf32 and x.dtype == torch.float32,
        )  # fmt: skip
        space = WeightSpace(self.rnn)
        self.regions = [
            region
            for layer in space.layers
            for region in (layer.w, layer.r, layer.input_bias, layer.recurrent_bias, layer.projection)
            if region is not None
        ]
        self._check_weights(network.offsets, space, self.regions)

    def tensors(self, places: dict[str, int]) -> dict[str, Tensor]:
        """The graph's tensors by port, without those that the call does not have."""
        there = {port: place for port, place in places.items() if not self._is_absent(place)}
        return {port: self._sequence(place) if port in ("x", "y", "dx", "dy") else self._sketch.at(place)
                for port, place in there.items()}  # fmt: skip

    def saved(self, reserve: int) -> dict[str, int]:
        """The places of what lies in the reserve, by port. Gradients of the gates lie where the gates do."""
        places: dict[int, int] = {}
        found = {}
        for port, saved in reserve_space(self.rnn, self.data_type).items():
            if saved.offset_bytes not in places:
                part = self._sketch.part(reserve, saved.offset_bytes, saved.dims, _DTYPES[saved.data_type])
                places[saved.offset_bytes] = part
            found[port] = places[saved.offset_bytes]
        return found

    def _is_absent(self, place: int) -> bool:
        return place < len(self._sketch.tensors) and self._sketch.tensors[place].shape is None

    def _sequence(self, place: int) -> Tensor:
        """The sequences as (steps, batch, size)."""
        tensor = self._sketch.at(place)
        if not self._batch_first:
            return tensor
        dims, strides = tensor.dims, tensor.strides
        return self._sketch.at(place, (dims[1], dims[0], dims[2]), (strides[1], strides[0], strides[2]))

    def _check_weights(self, offsets: Dims | None, space: WeightSpace, regions: Sequence[Region]) -> None:
        """Declines weights that do not lie in one buffer, in cuDNN's order."""
        (count,) = self._sketch.tensors[_W].shape or (0,)
        if offsets != tuple(region.offset for region in regions) or count != space.element_count:
            raise Declined("weights that do not lie in one buffer: see flatten_parameters")


def _offsets(weight: Sequence[Any], buffer: Any) -> Dims | None:
    if buffer is None:
        return None
    begin, size_bytes = buffer.data_ptr(), buffer.element_size()
    return tuple([(own.data_ptr() - begin) // size_bytes for own in weight])


def _lengths(batch_sizes: Sequence[int], device: Any) -> Any:
    """The steps of each sequence in INT32, from the number of sequences that each step has."""
    lengths: list[int] = []
    for steps in range(len(batch_sizes), 0, -1):
        lengths += [steps] * (batch_sizes[steps - 1] - len(lengths))
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        # A graph would copy again from memory of the host that is no longer there.
        parts = [torch.full((count,), steps, dtype=torch.int32, device=device)
                 for steps, count in sorted(Counter(lengths).items(), reverse=True)]  # fmt: skip
        return torch.cat(parts)
    found = torch.tensor(lengths, dtype=torch.int32)
    return found.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else found


def _contiguous(tensor: Any) -> Any:
    return optional(None if tensor is None else tensor.contiguous())


OVERLOADS = (
    Overload("_cudnn_rnn", "rnn", read, forward, kind="rnn"),
    Overload("_cudnn_rnn_backward", "rnn", read_backward, backward, kind="rnn", fallback=backward_native),
)
