"""Peers for the benchmark cases: the same work through PyTorch (cuBLAS, cuDNN, its own kernels), on the same inputs.

A peer launches the work on copy ``slot`` of the data into torch's current stream and returns what it computed (see
``bench_data.Result``), in the logical dims of the graph's outputs. cuDNN runs in benchmark mode, so that the best of
its algorithms for the shape is taken; fp32 products may use TF32 on both sides.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from bench_data import CaseData, Result
from bench_floor import moved_bytes
from bench_peers_attention import attention_gradient_peers, attention_peers
from bench_peers_conv import convolution_peers
from bench_peers_matmul import matmul_peers
from bench_peers_membound import dropout_peers, move_peers, pointwise_peers, reduction_peers, rope_peers
from bench_peers_moe import moe_peers
from bench_peers_resample import resample_peers
from bench_peers_rows import norm_peers, softmax_peers

from lowdnn.cases import (
    AttentionBackwardCase,
    AttentionCase,
    BlockScaleCase,
    Case,
    ConvolutionCase,
    MatmulCase,
    MoeCase,
    NormCase,
    PointwiseCase,
    ReductionCase,
    ResampleCase,
    RngCase,
    RopeCase,
    SoftmaxCase,
    TransformCase,
)

Peer = Callable[[int], Result]


def configure() -> None:
    """Sets torch up for the whole process: cuDNN in benchmark mode, TF32 allowed."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = True


def peers_of(case: Case, data: CaseData) -> dict[str, Peer]:
    """The peers of a case by name, those that torch refuses included: they raise when they are first launched."""
    if isinstance(case, ConvolutionCase):
        return convolution_peers(case, data)
    if isinstance(case, MatmulCase):
        return matmul_peers(case, data)
    if isinstance(case, MoeCase):
        return moe_peers(case, data)
    if isinstance(case, NormCase):
        return norm_peers(case, data)
    if isinstance(case, SoftmaxCase):
        return softmax_peers(case, data)
    if isinstance(case, PointwiseCase):
        return pointwise_peers(case, data)
    if isinstance(case, RngCase):
        return dropout_peers(case, data)
    if isinstance(case, TransformCase):
        return move_peers(case, data)
    if isinstance(case, RopeCase):
        return rope_peers(case, data)
    if isinstance(case, ReductionCase):
        return reduction_peers(case, data)
    if isinstance(case, ResampleCase):
        return resample_peers(case, data)
    if isinstance(case, AttentionCase):
        return attention_peers(case, data)
    if isinstance(case, AttentionBackwardCase):
        return attention_gradient_peers(case, data)
    if isinstance(case, BlockScaleCase):
        return {"copy": _copy(moved_bytes(case.graph()))}  # torch has no kernel for it
    raise TypeError(type(case).__name__)


def _copy(bytes_moved: int) -> Peer:
    # Whole MiB: the driver's copy is half as fast again at sizes that are a little over one.
    mebibytes = -(-bytes_moved // 2 // 2**20)
    source = torch.randint(0, 255, (mebibytes * 2**20,), device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)

    def copy(slot: int) -> None:
        target.copy_(source)

    return copy
