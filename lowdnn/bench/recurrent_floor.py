"""The least time of an operation of recurrent networks on a Hopper GPU.

    step   = hand-over + max(product, weights from beyond the chip, states into a multiprocessor) + gates
    floor  = steps * step + products outside of the recurrence

A step begins when the states of the last one are there, whoever has computed them: the hand-over. Its product is that
of (M, K) and (K, B), with M = G * H and K = S forward, and the other way round backward. Multiprocessors hold the
weights; as many groups of them as have room for all of the weights take a part of the batch each. Where K is split by
q, each of a group's n multiprocessors reads K / q elements of its sequences. It also reads sums in fp32 of M * q / n
rows: from q - 1 others 1 / q of them each. There are T steps for each layer, one layer after the other; T + L - 1 in
all where the weights of all layers fit on chip, since layer l + 1 may then be one step behind layer l.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from lowdnn import dtypes
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.ops.rnn_backward_weights import RnnBackwardWeights
from lowdnn.ops.rnn_operation import RecurrentOperation

#: Seconds from a store until another multiprocessor has read it through the L2 cache.
_HAND_OVER_S = 0.7e-6
#: Seconds from a store until another multiprocessor of the cluster has read it.
_CLUSTER_HAND_OVER_S = 0.25e-6
#: Seconds of a cell's functions, one after the other.
_GATES_S = 0.2e-6
_MULTIPROCESSORS, _CLUSTER = 132, 16
#: Bytes of weights that a multiprocessor holds in its registers and shared memory.
_HELD_BYTES = 400 * 2**10
#: Bytes a second from the L2 cache into all multiprocessors.
_L2_BYTES_PER_S = 5.5e12
#: Bytes a second from the L2 cache into one multiprocessor.
_INTO_ONE_BYTES_PER_S = 112e9
#: Parts that K may be split into.
_SPLITS = (1, 2, 4, 8, 16)
_SUM_BYTES = 4


def steps_of(rnn: Rnn) -> int:
    """Steps of all layers, one after the other."""
    return rnn.max_length * rnn.num_layers


def recurrent_floor_s(operation: RecurrentOperation, flops_per_s: float) -> float:
    """Seconds of the operation; ``flops_per_s``: sustained by matrix products."""
    rnn, step = operation.rnn, _Step.of(operation)
    into_layers = [0 if rnn.skips_product(n) else rnn.size_into(n) for n in range(rnn.num_layers)]
    inputs = [rnn.directions * rnn.gates * rnn.hidden_size * size for size in into_layers]
    if isinstance(operation, RnnBackwardWeights):
        return _product_s(rnn, sum(inputs) + rnn.num_layers * step.weights, flops_per_s)
    if step.fits_with(sum(inputs[1:]), rnn.num_layers):
        steps, outside = rnn.max_length + rnn.num_layers - 1, inputs[0]
    else:
        steps, outside = steps_of(rnn), sum(inputs)
    return steps * step.seconds(flops_per_s) + _product_s(rnn, outside, flops_per_s)


def step_floor_s(operation: RecurrentOperation, flops_per_s: float) -> float:
    """Seconds of one step of a layer; 0 for gradients of the weights, which have no steps."""
    return 0.0 if isinstance(operation, RnnBackwardWeights) else _Step.of(operation).seconds(flops_per_s)


def _product_s(rnn: Rnn, weights: int, flops_per_s: float) -> float:
    """Seconds of products of all rows with so many weights."""
    return 2 * rnn.max_length * rnn.batch_size * weights / flops_per_s


@dataclass(frozen=True)
class _Step:
    """A step of one layer: the extents of its product in all directions, and the bytes of an element."""

    m: int
    k: int
    batch: int
    element_bytes: int

    @classmethod
    def of(cls, operation: RecurrentOperation) -> _Step:
        rnn = operation.rnn
        m, k = rnn.directions * rnn.gates * rnn.hidden_size, rnn.state_size
        m, k = (k, m) if isinstance(operation, RnnBackwardData) else (m, k)
        return cls(m, k, rnn.batch_size, dtypes.info(operation.data_type).size_bytes)

    @property
    def weights(self) -> int:
        return self.m * self.k

    def fits_with(self, others: int, layers: int) -> bool:
        """Whether the weights of so many layers and ``others`` more fit on chip."""
        return (layers * self.weights + others) * self.element_bytes <= _MULTIPROCESSORS * _HELD_BYTES

    def seconds(self, flops_per_s: float) -> float:
        weight_bytes = self.weights * self.element_bytes
        hand_over_s = _CLUSTER_HAND_OVER_S if weight_bytes <= _CLUSTER * _HELD_BYTES else _HAND_OVER_S
        product_s = 2 * self.weights * self.batch / flops_per_s
        beyond_s = max(weight_bytes - _MULTIPROCESSORS * _HELD_BYTES, 0) / _L2_BYTES_PER_S
        return hand_over_s + max(product_s, beyond_s, self._into_one_s(weight_bytes)) + _GATES_S

    def _into_one_s(self, weight_bytes: int) -> float:
        """Seconds of what a multiprocessor must be given, with the best split of K."""
        groups = min(max(_MULTIPROCESSORS * _HELD_BYTES // weight_bytes, 1), self.batch)
        multiprocessors, columns = _MULTIPROCESSORS / groups, ceil(self.batch / groups)
        least_bytes = min(
            self.k / split * self.element_bytes + (split - 1) * self.m / multiprocessors * _SUM_BYTES
            for split in _SPLITS
        )
        return columns * least_bytes / _INTO_ONE_BYTES_PER_S
