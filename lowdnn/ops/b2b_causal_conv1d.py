"""Back-to-back gated causal convolutions along sequences: what the forward operation and its gradient share.

    p = causal_conv1d(x, weights_proj)                      three rows p_0, p_1, p_2 for each channel
    g = p_1 * p_2
    y = causal_conv1d(g, weights_mixer) + skip_bias * g
    y_gated = y * p_0

x is (B, 3 * D, L), whose channel 3 * d + i is row i of channel d; weights_proj is (3 * D, P), weights_mixer (D, M),
skip_bias (D,), and y and y_gated are (B, D, L). Elements before a sequence's first are 0, those of g too.
Sources: cudnn_subquadratic_ops.h; Poli et al., "Hyena hierarchy: Towards larger convolutional language models", 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import DataType
from lowdnn.ops.base import Values
from lowdnn.ops.causal_conv1d import sums_of
from lowdnn.ops.norm import check_dims, check_float, compute_type_of
from lowdnn.ops.tensor import Tensor
from lowdnn.status import UnsupportedShapeError

#: The rows of x that a channel has.
ROWS = 3


@dataclass(frozen=True)
class Projected:
    """The steps up to g: x and g behind zeros, and the rows p."""

    x: NDArray[Any]
    rows: tuple[NDArray[Any], ...]
    g: NDArray[Any]


@dataclass(frozen=True)
class B2BCausalConv1d:
    """The inputs of the forward operation, which its gradient has too."""

    x: Tensor
    weights_proj: Tensor
    weights_mixer: Tensor
    skip_bias: Tensor

    @property
    def channels(self) -> int:
        """D."""
        return self.weights_mixer.dims[0]

    @property
    def projection_taps(self) -> int:
        """P."""
        return self.weights_proj.dims[1]

    @property
    def mixer_taps(self) -> int:
        """M."""
        return self.weights_mixer.dims[1]

    @property
    def dims(self) -> tuple[int, int, int]:
        """The dims of y."""
        return self.x.dims[0], self.channels, self.x.dims[2]

    @property
    def compute_type(self) -> DataType:
        """FLOAT, or DOUBLE where x is."""
        return compute_type_of(self.x)

    @property
    def flops(self) -> int:
        """The operations of the sums and gates."""
        batch, channels, length = self.dims
        return batch * channels * length * (2 * (ROWS * self.projection_taps + self.mixer_taps) + 4)

    def check(self, where: str, others: Mapping[str, Tensor | None]) -> None:
        """Checks the inputs, and ``others`` of y's dims.

        Raises UnsupportedShapeError, ShapeMismatchError, UnsupportedDataTypeError and BadParamError.
        """
        ranks = (
            ("x", self.x, 3, "[batch, 3 * channels, length]"),
            ("weights_proj", self.weights_proj, 2, "[3 * channels, filter length]"),
            ("weights_mixer", self.weights_mixer, 2, "[channels, filter length]"),
        )
        for port, tensor, rank, expected in ranks:
            if tensor.rank != rank or (rank == 2 and tensor.dims[1] < 1):
                expected += "" if rank == 3 else " of 1 or more taps"
                raise UnsupportedShapeError.at(f"{where}.{port}.dims", expected=expected, got=list(tensor.dims))
        batch, channels, length = self.dims
        check_dims(where, (batch, ROWS * channels, length), {"x": self.x})
        check_dims(where, (ROWS * channels, self.projection_taps), {"weights_proj": self.weights_proj})
        check_dims(where, (channels,), {"skip_bias": self.skip_bias})
        check_dims(where, self.dims, dict(others))
        parameters = {"weights_proj": self.weights_proj, "weights_mixer": self.weights_mixer}
        floats = {"x": self.x, **parameters, "skip_bias": self.skip_bias, **others}
        check_float(where, {port: tensor for port, tensor in floats.items() if tensor is not None})

    def projected(self, values: Values) -> Projected:
        x = _behind_zeros(values["x"], self.projection_taps - 1)
        p = sums_of(values["weights_proj"], x)
        rows = tuple(p[:, i::ROWS] for i in range(ROWS))
        return Projected(x, rows, _behind_zeros(rows[1] * rows[2], self.mixer_taps - 1))

    def gates(self, extended: NDArray[Any]) -> NDArray[Any]:
        """g without the zeros before it."""
        return extended[..., self.mixer_taps - 1 :]


def _behind_zeros(values: NDArray[Any], count: int) -> NDArray[Any]:
    return np.concatenate([np.zeros((*values.shape[:-1], count)), values], axis=-1)
