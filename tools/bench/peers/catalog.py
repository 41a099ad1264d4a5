"""Peers for the benchmark cases: the same work through PyTorch (cuBLAS, cuDNN, its own kernels), on the same inputs.

A peer launches the work on copy ``slot`` of the data into torch's current stream and returns what it computed (see
``tools.bench.data.Result``), in the logical dims of the graph's outputs. cuDNN runs in benchmark mode, so that the best
of its algorithms for the shape is taken; fp32 products may use TF32 on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from lowdnn.bench.floor import moved_bytes
from lowdnn.cases.base import Case
from lowdnn.cases.families.attention import AttentionCase
from lowdnn.cases.families.attention_backward import AttentionBackwardCase
from lowdnn.cases.families.b2b_causal_conv1d import B2BCausalConv1dCase
from lowdnn.cases.families.causal_conv1d import CausalConv1dCase
from lowdnn.cases.families.convolution import ConvolutionCase
from lowdnn.cases.families.matmul import MatmulCase
from lowdnn.cases.families.moe import MoeCase
from lowdnn.cases.families.moves import BlockScaleCase, TransformCase
from lowdnn.cases.families.pointwise import PointwiseCase, ReductionCase
from lowdnn.cases.families.random_numbers import RngCase
from lowdnn.cases.families.recurrent import RnnCase
from lowdnn.cases.families.resample import ResampleCase
from lowdnn.cases.families.rotary import RopeCase
from lowdnn.cases.families.rows import NormCase, SoftmaxCase
from tools.bench.data import CaseData, Result
from tools.bench.peers.attention import attention_gradient_peers, attention_peers
from tools.bench.peers.conv import convolution_peers
from tools.bench.peers.matmul import matmul_peers
from tools.bench.peers.membound import dropout_peers, move_peers, pointwise_peers, reduction_peers, rope_peers
from tools.bench.peers.moe import moe_peers
from tools.bench.peers.recurrent import recurrent_peers
from tools.bench.peers.resample import resample_peers
from tools.bench.peers.rows import norm_peers, softmax_peers
from tools.bench.peers.sequence import causal_peers, gated_peers

Peer = Callable[[int], Result]


def configure(*, allow_tf32: bool = True) -> None:
    """Sets torch up for the whole process: cuDNN in benchmark mode, TF32 allowed or not."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allow_tf32


def peers_of(case: Case, data: CaseData) -> dict[str, Peer]:
    """The peers of a case by name, those that torch refuses included: they raise when they are first launched."""
    return _PEERS[type(case)](case, data)


def _scale_peers(case: BlockScaleCase, data: CaseData) -> dict[str, Peer]:
    """A copy of as many bytes: torch has no kernel for blocks of scales."""
    return {"copy": _copy(moved_bytes(case.graph()))}


def _copy(bytes_moved: int) -> Peer:
    # Sizes are whole MiB, the driver's fast case.
    mebibytes = -(-bytes_moved // 2 // 2**20)
    source = torch.randint(0, 255, (mebibytes * 2**20,), device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)

    def copy(slot: int) -> None:
        target.copy_(source)

    return copy


_PEERS: Mapping[type[Case], Callable[[Any, CaseData], dict[str, Any]]] = {
    AttentionBackwardCase: attention_gradient_peers,
    AttentionCase: attention_peers,
    BlockScaleCase: _scale_peers,
    B2BCausalConv1dCase: gated_peers,
    CausalConv1dCase: causal_peers,
    ConvolutionCase: convolution_peers,
    MatmulCase: matmul_peers,
    MoeCase: moe_peers,
    NormCase: norm_peers,
    PointwiseCase: pointwise_peers,
    ReductionCase: reduction_peers,
    ResampleCase: resample_peers,
    RnnCase: recurrent_peers,
    RngCase: dropout_peers,
    RopeCase: rope_peers,
    SoftmaxCase: softmax_peers,
    TransformCase: move_peers,
}
