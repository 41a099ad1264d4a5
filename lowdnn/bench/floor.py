"""The least time that a graph takes on a card: its arithmetic at the sustained peak, its bytes at a copy's speed.

Recurrent networks have a floor of their own (``recurrent_floor``), that of their steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from lowdnn.bench.recurrent_floor import recurrent_floor_s, step_floor_s
from lowdnn.engines.attention.heads import kernel_bounds, seen_share
from lowdnn.enums import DataType, NormMode
from lowdnn.graph.attention_pattern import Attention, match_attention
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, inputs_of, outputs_of
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.rnn_operation import RecurrentOperation
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.tensor import Tensor
from lowdnn.status import NotSupportedError


@dataclass(frozen=True)
class Card:
    """The rates that a card sustains.

    name: as it is part of the driver's name of the device. flops: matrix products of random data (fp32: as TF32), each
    per second, by data type; fp64_flops: those of all other types. copy_bytes_per_s: read plus written.
    """

    name: str
    flops: Mapping[DataType, float]
    fp64_flops: float
    copy_bytes_per_s: float


#: Measured.
H200 = Card(
    "H200",
    {
        DataType.BFLOAT16: 790e12,
        DataType.HALF: 790e12,
        DataType.FLOAT: 395e12,
        DataType.INT8: 1500e12,
        DataType.FP8_E4M3: 1500e12,
        DataType.FP8_E5M2: 1500e12,
    },
    fp64_flops=33e12,
    copy_bytes_per_s=4.3e12,
)
#: An H100 has the H200's multiprocessors and a memory of 3.35 TB/s; a copy is taken to reach 0.88 of it, as there.
H100 = replace(H200, name="H100", copy_bytes_per_s=2.95e12)
CARDS = (H200, H100)

#: The shared memory of all multiprocessors: what can wait there for the statistics of every channel.
_ON_CHIP_BYTES = 132 * 227 * 2**10


def card_named(device: str) -> Card:
    """The card of a device's name ("NVIDIA H200"). Raises NotSupportedError for a card whose rates are not known."""
    for card in CARDS:
        if card.name in device.split():
            return card
    known = ", ".join(card.name for card in CARDS)
    raise NotSupportedError.at("device.name", expected=f"a card out of {known}", got=device, hint="add it to CARDS")


def floor_us(graph: OperationGraph, card: Card) -> float:
    """The larger of ``moved_bytes`` at a copy's speed and the time of products at the sustained peak, steps counted."""
    rate = _flops_per_s(graph, card)
    recurrent = recurrent_operations(graph)
    products_s = sum(recurrent_floor_s(operation, rate) for operation in recurrent) or product_flops(graph) / rate
    return max(products_s, moved_bytes(graph) / card.copy_bytes_per_s) * 1e6


def step_floor_us(graph: OperationGraph, card: Card) -> float:
    """The least time of a step of a layer of a recurrent network; 0 of other graphs."""
    rate = _flops_per_s(graph, card)
    return sum(step_floor_s(operation, rate) for operation in recurrent_operations(graph)) * 1e6


def recurrent_operations(graph: OperationGraph) -> list[RecurrentOperation]:
    return [operation for operation in graph.operations if isinstance(operation, RecurrentOperation)]


def product_flops(graph: OperationGraph) -> float:
    """The first operation's arithmetic; of attention that of all products, of what queries see alone."""
    first = graph.operations[0]
    if isinstance(first, SdpaBackward):
        shift = first.k.dims[2] - first.q.dims[2] if first.is_bottom_right else 0
        left, right = kernel_bounds(first.left, first.right)
        return first.flops * seen_share(first.q.dims[2], first.k.dims[2], left - shift, right + shift)
    attention = match_attention(graph)
    if isinstance(attention, str):
        return first.flops
    queries, keys = attention.first.c.dims[2:]
    left, right = kernel_bounds(attention.band.left, attention.band.right)
    flops = attention.first.flops + attention.second.flops
    return flops * seen_share(queries, keys, left, right) * _existing_share(attention)


def moved_bytes(graph: OperationGraph) -> int:
    """Each input read once, each output written once; what a batch norm too large for the chip reads, twice."""
    again = (tensor.span_bytes for operation in graph.operations for tensor in _read_twice(operation))
    return data_bytes(graph) + sum(again)


def data_bytes(graph: OperationGraph) -> int:
    """All tensors in device memory together."""
    return sum(tensor.span_bytes for tensor in (*graph.inputs, *graph.outputs) if not tensor.is_scalar_value)


def data_type_of(graph: OperationGraph) -> DataType:
    """The data type of the first operation's first input, or of its output where it reads nothing."""
    operation = graph.operations[0]
    return next(iter((inputs_of(operation) | outputs_of(operation)).values())).data_type


def _flops_per_s(graph: OperationGraph, card: Card) -> float:
    return card.flops.get(data_type_of(graph), card.fp64_flops)


def _existing_share(attention: Attention) -> float:
    """The share of ragged sequences in all padded pairs of a query and a key: at the least, as if all had one
    length."""
    moves = (attention.ragged.get(tensor.uid) for tensor in (attention.first.a, attention.k))
    return prod(move.packed.dims[2] / prod(move.padded.dims[::2]) for move in moves if move is not None)


def _read_twice(operation: Operation) -> tuple[Tensor, ...]:
    """A channel's statistics come from all images, and every image waits for them."""
    if not isinstance(operation, NormForward | NormBackward) or operation.mode is not NormMode.BATCH_NORM:
        return ()
    if operation.x.span_bytes <= _ON_CHIP_BYTES:
        return ()
    return (operation.x,) if isinstance(operation, NormForward) else (operation.x, operation.dy)
