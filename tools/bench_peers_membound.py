"""Work bound by memory through PyTorch: pointwise chains as its own kernels and compiled into one, moves as copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from bench_data import CaseData

from lowdnn.graph.cases import PointwiseCase, RngCase, TransformCase

_functional = torch.nn.functional

Peer = Callable[[int], torch.Tensor | None]

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


def pointwise_peers(case: PointwiseCase, data: CaseData) -> dict[str, Peer]:
    """The chain step by step, and compiled."""
    inputs = data.inputs()

    def chain(x: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
        return _chain(case.ops, x, operands)

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


def _chain(steps: Sequence[str], value: torch.Tensor, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    waiting = list(operands)
    for step in steps:
        value = _UNARY[step](value) if step in _UNARY else _BINARY[step](value, waiting.pop(0))
    return value
