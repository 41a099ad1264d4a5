"""Every operation that graphs grow by, and the random graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from lowdnn.ops.catalog import operations
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.ops.rnn_backward_weights import RnnBackwardWeights
from lowdnn.ops.rnn_forward import RnnForward
from lowdnn.status import LowdnnError
from tests.support.random_graphs import (
    alike,
    attention,
    contractions,
    elementwise,
    moves,
    packed,
    rows,
    sequences,
    sums,
)
from tests.support.random_graphs.growth import Grown, Growth, UnfitError

Step = Callable[[Growth], None]

#: Steps that are written for their operations, by name, each with its relative frequency and whether its results can be
#: exact integers.
LISTED: Mapping[str, tuple[Step, int, bool]] = {
    "pointwise": (elementwise.pointwise, 12, True),
    "random_numbers": (elementwise.random_numbers, 1, False),
    "matmul": (contractions.matmul, 3, True),
    "matmul_with_extents": (contractions.matmul_with_extents, 1, True),
    "convolution_forward": (contractions.convolution_forward, 2, True),
    "convolution_data_gradient": (contractions.convolution_data_gradient, 2, True),
    "convolution_filter_gradient": (contractions.convolution_filter_gradient, 2, True),
    "grouped_matmul": (contractions.grouped_matmul, 1, True),
    "grouped_weight_gradient": (contractions.grouped_weight_gradient, 1, True),
    "b2b_causal_conv1d": (sequences.b2b_causal_conv1d, 1, False),
    "b2b_causal_conv1d_backward": (sequences.b2b_causal_conv1d_backward, 1, False),
    "causal_conv1d": (sequences.causal_conv1d, 1, False),
    "causal_conv1d_backward": (sequences.causal_conv1d_backward, 1, False),
    "reduction": (sums.reduction, 4, True),
    "custom_reduction": (sums.custom_reduction, 1, True),
    "described_reduction": (sums.described_reduction, 1, True),
    "gen_stats": (sums.gen_stats, 1, True),
    "bn_finalize": (sums.bn_finalize, 1, False),
    "bn_backward_weights": (sums.bn_backward_weights, 1, False),
    "resample_forward": (sums.resample_forward, 2, True),
    "resample_backward": (sums.resample_backward, 1, True),
    "norm_forward": (rows.norm_forward, 3, False),
    "norm_backward": (rows.norm_backward, 2, False),
    "batch_norm_inference": (rows.batch_norm_inference, 1, False),
    "softmax": (rows.softmax, 2, False),
    "softmax_backward": (rows.softmax_backward, 1, False),
    "transpose": (moves.transpose, 2, True),
    "reshape": (moves.reshape, 2, True),
    "slice": (moves.slice_, 1, True),
    "concat": (moves.concat, 1, True),
    "block_scale_quantize": (moves.block_scale_quantize, 1, False),
    "block_scale_dequantize": (moves.block_scale_dequantize, 1, False),
    "block_scale_dequantize_by_axes": (moves.block_scale_dequantize_by_axes, 1, False),
    "expand_band_matrix": (moves.expand_band_matrix, 1, True),
    "contract_band_matrix": (moves.contract_band_matrix, 1, True),
    "rope": (moves.rope, 1, False),
    "paged_cache_load": (moves.paged_cache_load, 1, True),
    "ragged_load": (packed.ragged_load, 1, True),
    "ragged_store": (packed.ragged_store, 1, True),
    "pack_bits": (packed.pack_bits, 1, False),
    "unpack_bits": (packed.unpack_bits, 1, True),
    "block_mask": (moves.block_mask, 1, False),
    "sdpa_forward": (attention.sdpa_forward, 2, False),
    "sdpa_backward": (attention.sdpa_backward, 1, False),
    "sdpa_centred_backward": (attention.sdpa_centred_backward, 1, False),
    "sdpa_fp8_backward": (attention.sdpa_fp8_backward, 1, False),
    "sdpa_gradients": (attention.sdpa_gradients, 1, False),
    "diagonal_band_mask": (attention.diagonal_band_mask, 1, False),
}

#: Recurrent networks stand alone in their graphs, and all of their tensors but sequences lie in one way.
ALONE = (RnnForward, RnnBackwardData, RnnBackwardWeights)

_STEP_MODULES = (attention, contractions, elementwise, moves, packed, rows, sequences, sums)
#: Operations that no module of steps imports take tensors of equal dims.
_ALIKE = [
    kind
    for kind in operations()
    if kind not in ALONE and not any(kind in vars(module).values() for module in _STEP_MODULES)
]

#: All steps.
STEPS = {**LISTED, **{kind.__name__: (partial(alike.alike, kind), 1, False) for kind in _ALIKE}}

_MOST_OPERATIONS = 8
#: One graph in so many has exact integers.
_GRAPHS_BETWEEN_EXACT = 3
#: One graph in so many has extents of 0.
_GRAPHS_BETWEEN_EMPTY = 8
#: The share of extents of such a graph that are 0.
_EMPTY_SHARE = 0.1
_MOST_ATTEMPTS = 200


def random_graph(seed: int, among: Mapping[str, tuple[Step, int, bool]] = STEPS) -> Grown:
    """The graph of this seed, of up to 8 operations (compound ones count once), of steps ``among`` these."""
    rng = np.random.default_rng(seed)
    while True:
        try:
            return _grown(rng, seed, among)
        except LowdnnError:  # rules that only the whole graph can break
            continue


def _grown(rng: np.random.Generator, seed: int, among: Mapping[str, tuple[Step, int, bool]]) -> Grown:
    empty_share = 0.0 if seed % _GRAPHS_BETWEEN_EMPTY else _EMPTY_SHARE
    growth = Growth(rng, is_exact=seed % _GRAPHS_BETWEEN_EXACT == 0, empty_share=empty_share)
    wanted = int(rng.integers(1, _MOST_OPERATIONS + 1))
    steps = [(step, weight) for step, weight, is_exact in among.values() if is_exact or not growth.is_exact]
    weights = np.array([weight for _, weight in steps], float)
    for _ in range(_MOST_ATTEMPTS):
        step, _ = steps[int(rng.choice(len(steps), p=weights / weights.sum()))]
        grow(growth, step)
        if len(growth.operations) >= wanted:
            break
    return growth.grown()


def grow(growth: Growth, step: Step) -> str:
    """Adds the step's operations. Returns why that is impossible, or an empty string."""
    try:
        step(growth)
    except UnfitError:
        return "results are too large to compare"
    except LowdnnError as refused:
        return str(refused)
    return ""
