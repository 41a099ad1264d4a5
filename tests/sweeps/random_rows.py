"""Random norms, softmax, reductions and chains of pointwise operations, as case lines: any mode, axes, layout, type and
fusion, rows from one element on."""

from __future__ import annotations

from math import prod

import numpy as np

_TYPES = ("dtype=fp32", "dtype=bf16", "dtype=fp16", "dtype=fp64", "dtype=bf16 out=fp32", "dtype=fp16 align=2")
_LAYOUTS = ("", "", "layout=nhwc", "layout=padded", "layout=transposed")
_NORMS = ("layer", "rms", "ada", "instance", "group", "batch")
_BEHIND = ("", "", "epilogue=relu", "epilogue=residual+swish", "epilogue=scalar+store+abs")
_BEFORE = ("", "", "", "before=residual+store", "before=mul")
_INTEGERS = ("dtype=int32", "dtype=int8 out=int32", "dtype=int64", "dtype=int32 out=fp32")
_REDUCTIONS = ("add", "avg", "min", "max", "amax", "norm1", "norm2", "mul", "mul_no_zeros")
_BROADCASTS = ("", "broadcast=channel", "broadcast=row", "broadcast=column", "broadcast=batch", "broadcast=scalar")
#: Steps without a jump, next to which a rounding would tell; those of integers, too.
_WHOLE_STEPS = ("relu", "abs", "neg", "add", "sub", "max", "min", "identity")
_STEPS = (*_WHOLE_STEPS, "mul", "tanh", "sigmoid", "swish", "gelu", "softplus", "elu", "relu6", "leaky_relu", "erf")
_MOST_STEPS = 4


def draw_norm(rng: np.random.Generator, most_elements: int) -> str:
    """The line of a norm with at most about ``most_elements`` elements of x."""
    mode, direction = _pick(rng, _NORMS), _pick(rng, ("fwd", "bwd"))
    dims = _dims(rng, most_elements, least_rank=3 if mode in _NORMS[3:] else 2)
    axes = f"axes={_axes(rng, len(dims), 1)}" if mode in ("layer", "rms", "ada") else ""
    groups = ""
    if mode == "group":
        divisors = [count for count in range(1, dims[1] + 1) if dims[1] % count == 0]
        groups = f"groups={divisors[int(rng.integers(len(divisors)))]}"
    phase = _pick(rng, ("", "phase=inference")) if direction == "fwd" and mode != "batch" else ""
    running = _pick(rng, ("", "running=yes")) if direction == "fwd" and mode == "batch" else ""
    words = (_pick(rng, _TYPES), _pick(rng, _LAYOUTS), _pick(rng, ("", "scale=scale", "scale=none")))
    fused = (_pick(rng, _BEFORE), _pick(rng, _BEHIND))
    return _line(f"norm mode={mode} dims={_joined(dims)} dir={direction}", axes, groups, phase, running, *words, *fused)


def draw_softmax(rng: np.random.Generator, most_elements: int) -> str:
    """The line of a softmax, or of its gradient, with at most about ``most_elements`` elements."""
    dims, direction = _dims(rng, most_elements, least_rank=1), _pick(rng, ("fwd", "bwd"))
    statistics = _pick(rng, ("", "stats=fp32")) if direction == "fwd" else ""
    words = (_pick(rng, _TYPES), _pick(rng, _LAYOUTS), _pick(rng, ("", "log=yes")), statistics)
    fused = (_pick(rng, _BEFORE), _pick(rng, _BEHIND))
    return _line(f"softmax dims={_joined(dims)} dir={direction} axes={_axes(rng, len(dims), 0)}", *words, *fused)


def draw_reduction(rng: np.random.Generator, most_elements: int) -> str:
    """The line of a reduction of at most about ``most_elements`` elements."""
    dims, operator = _dims(rng, most_elements, least_rank=1), _pick(rng, _REDUCTIONS)
    data_type = _pick(rng, _TYPES if operator == "norm2" else (*_TYPES, *_INTEGERS))
    before = _pick(rng, ("", "", "before=abs", "before=relu+neg"))
    after = _pick(rng, ("", "", "after=relu", "after=neg"))
    words = (data_type, _pick(rng, _LAYOUTS), before, after)
    return _line(f"reduction dims={_joined(dims)} axes={_axes(rng, len(dims), 0)} op={operator}", *words)


def draw_pointwise(rng: np.random.Generator, most_elements: int) -> str:
    """The line of a chain of pointwise operations on at most about ``most_elements`` elements."""
    dims = _dims(rng, most_elements, least_rank=2)
    data_type = _pick(rng, (*_TYPES, *_INTEGERS))
    steps = _WHOLE_STEPS if data_type in _INTEGERS else _STEPS
    chain = "+".join(_pick(rng, steps) for _ in range(int(rng.integers(1, _MOST_STEPS + 1))))
    layouts = (_pick(rng, _LAYOUTS), _pick(rng, ("", "out_layout=nhwc", "out_layout=transposed")))
    words = (data_type, *layouts, _pick(rng, _BROADCASTS))
    return _line(f"pointwise dims={_joined(dims)} ops={chain}", *words)


def _dims(rng: np.random.Generator, most_elements: int, least_rank: int) -> tuple[int, ...]:
    """Half of the extents are multiples of 8; the last may be long."""
    rank = int(rng.integers(least_rank, 5))
    dims = [int(rng.choice([1, 2, 3, 7, 16, 24])) for _ in range(rank)]
    room = max(1, most_elements // prod(dims[:-1]))
    dims[-1] = int(min(room, 2 ** rng.uniform(0, np.log2(room) + 1e-9)))
    if rng.integers(2):
        dims[-1] = max(1, dims[-1] // 8 * 8)
    return tuple(dims)


def _axes(rng: np.random.Generator, rank: int, first: int) -> str:
    count = int(rng.integers(1, rank - first + 1))
    return ",".join(map(str, sorted(first + rng.permutation(rank - first)[:count])))


def _pick(rng: np.random.Generator, values: tuple[str, ...]) -> str:
    return values[int(rng.integers(len(values)))]


def _line(*words: str) -> str:
    return " ".join(word for word in words if word)


def _joined(values: tuple[int, ...]) -> str:
    return "x".join(map(str, values))
