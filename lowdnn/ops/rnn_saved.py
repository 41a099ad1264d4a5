"""The tensors that a training forward saves for its gradients, and their places in a reserve space.

Tensors are row-major, in the type of x unless said otherwise; rows past a sequence's length are 0.

    gates        (L * D, T, B, blocks * H)  the cell's gates after their non-linearity: h of an RNN; i, f, g, o of an
                 LSTM; r, z, n of a GRU and behind them R_n h + bR_n, or r * h without ``reset_after``
    cells        (L * D, T, B, H)           c' of an LSTM, not clipped, in FLOAT (DOUBLE for an x in DOUBLE)
    outputs      (L - 1, T, B, D * S)       states of all layers but the last, whose states are y, before dropout
    unprojected  (L * D, T, B, H)           h' of an LSTM before its projection
    dgates       as gates                   gradients of the gates before their non-linearity; the fourth block of a GRU
                 is the gradient of R_n h + bR_n, or the gates' own one without ``reset_after``
    dprojected   (L * D, T, B, P)           gradients of h' after the projection

The last two are written by the gradient of the data for that of the weights. In a reserve space dgates take the place
of gates. Where elements are dropped, it begins with the seed and the offset of the masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from lowdnn import dtypes
from lowdnn.enums import DataType
from lowdnn.ops.rnn import Rnn

#: Alignment in bytes of each tensor in a reserve space but the offset of the masks, which follows their seed.
RESERVE_ALIGNMENT = 256


@dataclass(frozen=True)
class Saved:
    """A tensor that is saved; ``offset_bytes``: from the begin of the reserve space."""

    dims: tuple[int, ...]
    data_type: DataType
    offset_bytes: int

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + prod(self.dims) * dtypes.info(self.data_type).size_bytes


def saved_dims(rnn: Rnn) -> Mapping[str, tuple[int, ...]]:
    """The dims, by name, of the tensors that a training forward saves and that the gradient of its data adds."""
    rows, found = (rnn.pseudo_layers, rnn.max_length, rnn.batch_size), {}
    found["gates"] = (*rows, rnn.blocks * rnn.hidden_size)
    if rnn.is_lstm:
        found["cells"] = (*rows, rnn.hidden_size)
    if rnn.num_layers > 1:
        found["outputs"] = (rnn.num_layers - 1, rnn.max_length, rnn.batch_size, rnn.output_size)
    if rnn.projection_size:
        found["unprojected"] = (*rows, rnn.hidden_size)
    found["dgates"] = found["gates"]
    if rnn.projection_size:
        found["dprojected"] = (*rows, rnn.projection_size)
    return found


def cell_type(data_type: DataType) -> DataType:
    """The type of saved cell states, and of the arithmetic, for an x of ``data_type``."""
    return DataType.DOUBLE if data_type is DataType.DOUBLE else DataType.FLOAT


def reserve_space(rnn: Rnn, data_type: DataType) -> Mapping[str, Saved]:
    """The place of each tensor; ``dropout_seed`` and ``dropout_offset`` are there where elements are dropped."""
    found: dict[str, Saved] = {}
    if rnn.drops:
        found["dropout_seed"] = Saved((1,), DataType.INT64, 0)
        found["dropout_offset"] = Saved((1,), DataType.INT64, 8)
    for name, dims in saved_dims(rnn).items():
        kind = cell_type(data_type) if name == "cells" else data_type
        if name == "dgates":
            found[name] = found["gates"]
            continue
        end = max((saved.end_bytes for saved in found.values()), default=0)
        found[name] = Saved(dims, kind, -(-end // RESERVE_ALIGNMENT) * RESERVE_ALIGNMENT)
    return found


def reserve_space_bytes(rnn: Rnn, data_type: DataType) -> int:
    return max(saved.end_bytes for saved in reserve_space(rnn, data_type).values())
