"""An LSTM layer in training: forward and both gradients, for sequences of several lengths.

    python -m lowdnn.guide.recipes.lstm_training

``lowdnn.adv`` has cuDNN's calls on recurrent networks. Descriptors are plain values, arrays are device addresses (0 for
one that is not there), and sizes are in bytes. Weights go by the names of ``torch.nn.LSTM``. Sequences are padded to
the longest one; what lies behind their ends does not count.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn import adv
from lowdnn.enums import DataType, MathType

Array = NDArray[np.floating]

STEPS, BATCH, INPUT, HIDDEN = 5, 3, 8, 16
#: Steps of each sequence.
LENGTHS = (5, 3, 1)
#: The parameters of ``torch.nn.LSTM``: gates i, f, g and o, one below the other.
WEIGHT_SHAPES = {
    "weight_ih_l0": (4 * HIDDEN, INPUT),
    "weight_hh_l0": (4 * HIDDEN, HIDDEN),
    "bias_ih_l0": (4 * HIDDEN,),
    "bias_hh_l0": (4 * HIDDEN,),
}
NETWORK = adv.RNNDescriptor(
    algo=adv.RNNAlgo.STANDARD,
    cell_mode=adv.RNNMode.LSTM,
    bias_mode=adv.RNNBiasMode.DOUBLE_BIAS,
    dir_mode=adv.DirectionMode.UNIDIRECTIONAL,
    input_mode=adv.RNNInputMode.LINEAR_INPUT,
    data_type=DataType.FLOAT,
    math_prec=DataType.FLOAT,
    math_type=MathType.FMA_MATH,
    input_size=INPUT,
    hidden_size=HIDDEN,
    proj_size=HIDDEN,
    num_layers=1,
    aux_flags=adv.PADDED_IO_ENABLED,
)


def compute(handle: lowdnn.Handle) -> dict[str, Array]:
    """The outputs y, and the gradients of x and of each weight for a random gradient dy."""
    x, dy, weights = inputs()
    return train(handle, x, dy, weights)


def inputs() -> tuple[Array, Array, dict[str, Array]]:
    """x (steps, batch, input), dy (steps, batch, hidden) and the weights by name, drawn at random."""
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((STEPS, BATCH, size)).astype(np.float32) for size in (INPUT, HIDDEN))
    weights = {
        name: (rng.standard_normal(shape) / HIDDEN**0.5).astype(np.float32) for name, shape in WEIGHT_SHAPES.items()
    }
    return x, dy, weights


def train(handle: lowdnn.Handle, x: Array, dy: Array, weights: Mapping[str, Array]) -> dict[str, Array]:
    x_desc, y_desc = sequences(INPUT), sequences(HIDDEN)
    x_device, dy_device = lowdnn.from_numpy(x, handle), lowdnn.from_numpy(dy, handle)
    y, dx = lowdnn.empty(dy.shape, handle), lowdnn.empty(x.shape, handle)
    w = lowdnn.from_numpy(adv.weights_from_torch(NETWORK, weights), handle)
    dw = lowdnn.empty(w.shape, handle)
    training = adv.ForwardMode.TRAINING
    sizes = adv.get_rnn_temp_space_sizes(handle, NETWORK, training, x_desc)
    work, reserve = (lowdnn.empty((size,), handle, cudnn.data_type.INT8) for size in sizes)
    spaces = (work.size_bytes, work.ptr, reserve.size_bytes, reserve.ptr)
    weight_bytes = adv.get_rnn_weight_space_size(NETWORK)
    no_states = (None, 0, 0)  # a descriptor of h or c, and addresses of the first and the last states
    adv.rnn_forward(
        handle, NETWORK, training, 0, x_desc, x_device.ptr, y_desc, y.ptr, *no_states, *no_states,
        weight_bytes, w.ptr, *spaces,
    )  # fmt: skip
    adv.rnn_backward_data(
        handle, NETWORK, 0, y_desc, y.ptr, dy_device.ptr, x_desc, dx.ptr, *no_states, 0, *no_states, 0,
        weight_bytes, w.ptr, *spaces,
    )  # fmt: skip
    adv.rnn_backward_weights(
        handle, NETWORK, adv.WgradMode.SET, 0, x_desc, x_device.ptr, None, 0, y_desc, y.ptr,
        weight_bytes, dw.ptr, *spaces,
    )  # fmt: skip
    gradients = adv.weights_to_torch(NETWORK, dw.numpy())
    return {"y": y.numpy(), "dx": dx.numpy(), **{f"d{name}": array for name, array in gradients.items()}}


def sequences(size: int) -> adv.RNNDataDescriptor:
    """Padded sequences of rows of ``size`` elements, with time outermost."""
    return adv.RNNDataDescriptor(
        DataType.FLOAT, adv.RNNDataLayout.SEQ_MAJOR_UNPACKED, STEPS, BATCH, size, LENGTHS, padding_fill=0.0
    )


if __name__ == "__main__":
    with lowdnn.create_handle() as handle:
        for name, array in compute(handle).items():
            print(f"{name}: {array.shape}, {array.dtype}, mean {array.mean():.4f}")
