"""The least time of an operation of recurrent networks on a Hopper GPU.

    step   = hand-over + max(product, weights from beyond the chip) + gates
    floor  = steps * step + products outside of the recurrence

A step begins when the states of the last one are there, whoever has computed them: the hand-over is a barrier and an
exchange at once. Its product is that of R and the states, backward that of R^T and the gradients of the gates.
Multiprocessors hold R, as far as it fits. Meanwhile they read the states, which takes less time than the product where
the inner extent is split well.
There are T steps for each layer, one layer after the other; T + L - 1 in all where the weights of all layers fit on
chip, since layer l + 1 may then be one step behind layer l.
"""

from __future__ import annotations

from lowdnn import dtypes
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_backward_weights import RnnBackwardWeights
from lowdnn.ops.rnn_operation import RecurrentOperation

#: Seconds from a store until another multiprocessor has read it through the L2 cache.
_HAND_OVER_S = 0.7e-6
#: Seconds from a store until another multiprocessor of the cluster has read it.
_CLUSTER_HAND_OVER_S = 0.25e-6
#: Seconds of a cell's functions, one after the other.
_GATES_S = 0.2e-6
_MULTIPROCESSORS = 132
#: Multiprocessors of the largest cluster.
_CLUSTER = 16
#: Bytes of weights that a multiprocessor holds in its registers and shared memory.
_HELD_BYTES = 400 * 2**10
#: Bytes a second from the L2 cache into all multiprocessors.
_L2_BYTES_PER_S = 5.5e12


def steps_of(rnn: Rnn) -> int:
    """Steps of all layers, one after the other."""
    return rnn.max_length * rnn.num_layers


def recurrent_floor_s(operation: RecurrentOperation, flops_per_s: float) -> float:
    """Seconds of the operation; ``flops_per_s``: sustained by matrix products."""
    rnn, inputs, recurrent = operation.rnn, _input_weights(operation.rnn), _recurrent_weights(operation.rnn)
    row_s = 2 * rnn.max_length * rnn.batch_size / flops_per_s
    if isinstance(operation, RnnBackwardWeights):
        return row_s * (sum(inputs) + rnn.num_layers * recurrent)
    weights = rnn.num_layers * recurrent + sum(inputs[1:])
    if weights * _element_bytes(operation) <= _MULTIPROCESSORS * _HELD_BYTES:
        steps, outside = rnn.max_length + rnn.num_layers - 1, inputs[0]
    else:
        steps, outside = steps_of(rnn), sum(inputs)
    return steps * step_floor_s(operation, flops_per_s) + row_s * outside


def step_floor_s(operation: RecurrentOperation, flops_per_s: float) -> float:
    """Seconds of one step of a layer; 0 for gradients of the weights, which have no steps."""
    if isinstance(operation, RnnBackwardWeights):
        return 0.0
    weights = _recurrent_weights(operation.rnn)
    weight_bytes = weights * _element_bytes(operation)
    hand_over_s = _CLUSTER_HAND_OVER_S if weight_bytes <= _CLUSTER * _HELD_BYTES else _HAND_OVER_S
    product_s = 2 * weights * operation.rnn.batch_size / flops_per_s
    beyond_s = max(weight_bytes - _MULTIPROCESSORS * _HELD_BYTES, 0) / _L2_BYTES_PER_S
    return hand_over_s + max(product_s, beyond_s) + _GATES_S


def _recurrent_weights(rnn: Rnn) -> int:
    """The elements of R of a layer."""
    return rnn.directions * rnn.gates * rnn.hidden_size * rnn.state_size


def _input_weights(rnn: Rnn) -> list[int]:
    """The elements of W of each layer."""
    sizes = [0 if rnn.skips_product(layer) else rnn.size_into(layer) for layer in range(rnn.num_layers)]
    return [rnn.directions * rnn.gates * rnn.hidden_size * size for size in sizes]


def _element_bytes(operation: RecurrentOperation) -> int:
    return dtypes.info(operation.data_type).size_bytes
