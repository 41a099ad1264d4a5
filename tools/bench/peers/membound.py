"""Chains, moves, reductions and rotations through PyTorch: chains as its own kernels and compiled into one, moves as
copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from lowdnn.cases.families.moves import TransformCase
from lowdnn.cases.families.pointwise import PointwiseCase, ReductionCase
from lowdnn.cases.families.random_numbers import RngCase
from lowdnn.cases.families.rotary import RopeCase
from lowdnn.cases.steps import STORE
from tools.bench.data import TORCH_TYPES, CaseData, Result

_functional = torch.nn.functional

Peer = Callable[[int], Result]

#: Steps of chains that stand on one tensor, and those with an operand of their own.
_UNARY: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "identity": torch.clone,
    "relu": torch.relu,
    "gelu": _functional.gelu,
    "swish": _functional.silu,
}
_BINARY: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "residual": torch.add,
    "bias": torch.add,
    "mul": torch.mul,
    "scale": torch.mul,
}


#: Reductions that are sums or extrema, and those that are norms: their order.
_SUMS = {"add": torch.sum, "avg": torch.mean}
_EXTREMA = {"max": torch.amax, "min": torch.amin}
_NORMS = {"norm1": 1.0, "norm2": 2.0, "amax": float("inf")}


def run_chain(
    steps: Sequence[str], value: torch.Tensor, operands: Iterator[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """(the last value, those that are stored on the way); each step takes its operand from ``operands``."""
    stored = []
    for step in steps:
        if step == STORE:
            stored.append(value)
        else:
            value = _UNARY[step](value) if step in _UNARY else _BINARY[step](value, next(operands))
    return value, stored


def pointwise_peers(case: PointwiseCase, data: CaseData) -> dict[str, Peer]:
    """The chain step by step, and compiled."""
    inputs = data.inputs()

    def chain(x: torch.Tensor, *operands: torch.Tensor) -> list[torch.Tensor]:
        value, stored = run_chain(case.ops, x, iter(operands))
        return [*stored, value]

    torch.compiler.reset()  # the compiler remembers by code, which cases share, and gives up after a few
    compiled = torch.compile(chain, dynamic=False)
    return {
        "torch": lambda slot: chain(*(copies[slot] for copies in inputs)),
        "torch.compile": lambda slot: compiled(*(copies[slot] for copies in inputs)),
    }


def dropout_peers(case: RngCase, data: CaseData) -> dict[str, Peer]:
    """Dropout of the chain's operand; the numbers are others, so that there is nothing to compare."""
    (x,) = data.inputs()

    def dropout(slot: int) -> None:
        _functional.dropout(x[slot], 1.0 - case.p, training=True)

    return {"torch": dropout}


def move_peers(case: TransformCase, data: CaseData) -> dict[str, Peer]:
    """One copy of a view, or torch's concatenation."""
    inputs, outputs = data.inputs(), data.fresh_outputs()
    if case.op == "concat":
        return {"torch": lambda slot: torch.cat([copies[slot] for copies in inputs], case.axis)}
    (x,) = inputs
    move = {"transpose": lambda t: t.permute(case.perm), "copy": lambda t: t}[case.op]
    return {"torch": lambda slot: outputs[slot].copy_(move(x[slot]))}


def rope_peers(case: RopeCase, data: CaseData) -> dict[str, Peer]:
    """Rotary position embedding, or its gradient, compiled."""
    x, freqs = data.inputs()
    half, sign = (case.size or case.d) // 2, 1 if case.dir == "fwd" else -1
    parts, dtype = (case.d - 2 * half, half, half), TORCH_TYPES[case.out or case.dtype]

    def rotated(x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        angles = freqs[:, 0, 0, :half]
        cosine, sine = angles.cos(), sign * angles.sin()
        passed, low, high = x.float().split(parts, dim=3)
        rows = torch.cat([passed, low * cosine - high * sine, high * cosine + low * sine], dim=3)
        return (case.scale * rows).to(dtype)

    torch.compiler.reset()  # the compiler remembers by code, which cases share, and gives up after a few
    compiled = torch.compile(rotated, dynamic=False)
    return {"torch.compile": lambda slot: compiled(x[slot], freqs[slot])}


def reduction_peers(case: ReductionCase, data: CaseData) -> dict[str, Peer]:
    """torch's reduction of a case without pointwise steps."""
    if case.before or case.after:
        raise ValueError(f"{case}: expected a reduction alone, for the peer's sake")
    x, axes, dtype = data["x"], case.axes, TORCH_TYPES[case.out or case.dtype]
    if case.op in _SUMS:
        total = _SUMS[case.op]
        return {"torch": lambda slot: total(x[slot], dim=axes, keepdim=True, dtype=dtype)}
    if case.op in _EXTREMA:
        extremum = _EXTREMA[case.op]
        return {"torch": lambda slot: extremum(x[slot], dim=axes, keepdim=True)}
    order = _NORMS[case.op]
    return {"torch": lambda slot: torch.linalg.vector_norm(x[slot], order, axes, keepdim=True, dtype=dtype)}
