"""CUDA's math library, as NVRTC expands it to PTX, against float64: the error bounds of the CUDA C++ Programming Guide.

The expansions bring together local arrays, 64-bit products, directed rounding, approximations and many branches.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

LANES = 512
UNARY: dict[str, tuple[Callable[[float], float], float, float, int]] = {
    "sinf": (math.sin, -1e5, 1e5, 2),
    "cosf": (math.cos, -1e5, 1e5, 2),
    "tanf": (math.tan, -100, 100, 4),
    "asinf": (math.asin, -1, 1, 2),
    "acosf": (math.acos, -1, 1, 2),
    "atanf": (math.atan, -50, 50, 2),
    "sinhf": (math.sinh, -20, 20, 3),
    "coshf": (math.cosh, -20, 20, 2),
    "tanhf": (math.tanh, -5, 5, 2),
    "asinhf": (math.asinh, -50, 50, 3),
    "acoshf": (math.acosh, 1, 50, 4),
    "atanhf": (math.atanh, -0.99, 0.99, 3),
    "expf": (math.exp, -80, 80, 2),
    "exp2f": (math.exp2, -120, 120, 2),
    "expm1f": (math.expm1, -5, 5, 1),
    "logf": (math.log, 1e-30, 1e30, 1),
    "log2f": (math.log2, 1e-30, 1e30, 1),
    "log10f": (math.log10, 1e-30, 1e30, 2),
    "log1pf": (math.log1p, -0.9, 50, 1),
    "sqrtf": (math.sqrt, 0, 1e30, 0),
    "rsqrtf": (lambda x: x**-0.5, 1e-30, 1e30, 2),
    "cbrtf": (math.cbrt, -1e30, 1e30, 1),
    "erff": (math.erf, -4, 4, 2),
    "erfcf": (math.erfc, -4, 9, 4),
    "tgammaf": (math.gamma, 0.1, 30, 5),
    "lgammaf": (math.lgamma, 3, 1e6, 6),
    "rintf": (round, -1e6, 1e6, 0),
    "floorf": (math.floor, -1e6, 1e6, 0),
    "truncf": (math.trunc, -1e6, 1e6, 0),
}
BINARY: dict[str, tuple[Callable[[float, float], float], float, float, int]] = {
    "powf": (math.pow, 0.01, 20, 4),
    "atan2f": (math.atan2, -20, 20, 3),
    "fmodf": (math.fmod, -1e6, 1e6, 0),
    "remainderf": (math.remainder, -1e6, 1e6, 0),
    "hypotf": (math.hypot, -1e15, 1e15, 3),
    "copysignf": (math.copysign, -5, 5, 0),
    "fdividef": (lambda x, y: x / y, 0.5, 5, 2),
}
DOUBLE: dict[str, tuple[Callable[[float], float], float, float, int]] = {
    "sin": (math.sin, -100, 100, 2),
    "exp": (math.exp, -300, 300, 1),
    "log": (math.log, 1e-200, 1e200, 1),
    "tanh": (math.tanh, -5, 5, 2),
    "erf": (math.erf, -4, 4, 2),
    "sqrt": (math.sqrt, 0, 1e200, 0),
    "cbrt": (lambda x: float(np.cbrt(np.longdouble(x))), -1e200, 1e200, 1),
}
INTEGER: dict[str, Callable[[int, int], int]] = {
    "x / y": lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1),
    "x % y": lambda x, y: abs(x) % abs(y) * (1 if x >= 0 else -1),
    "__mul64hi(x, y)": lambda x, y: x * y >> 64,
    "(long long)__clzll(x)": lambda x, y: 64 - (x % 2**64).bit_length(),
    "(long long)__popcll(x)": lambda x, y: (x % 2**64).bit_count(),
}


def spread(rng: np.random.Generator, low: float, high: float, dtype: type) -> np.ndarray:
    """Numbers between the bounds, evenly by logarithm where these lie far apart."""
    if low > 0 and high / low > 1e3:
        return np.exp(rng.uniform(np.log(low), np.log(high), LANES)).astype(dtype)
    return rng.uniform(low, high, LANES).astype(dtype)


def kernel(calls: list[str], kind: str) -> str:
    """Kernel ``k``: o[c][i] = calls[c] of x = a[c][i], y = b[c][i]."""
    lines = [f"x = a[{c} * n + i]; y = b[{c} * n + i]; o[{c} * n + i] = {call};" for c, call in enumerate(calls)]
    return (
        f'extern "C" __global__ void k(const {kind}* a, const {kind}* b, {kind}* o, int n) {{'
        f" int i = blockIdx.x * blockDim.x + threadIdx.x; {kind} x, y; if (i >= n) return; {' '.join(lines)} }}"
    )


def evaluate(bench, compile_cuda, calls: list[str], kind: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    module = bench.machine.load(compile_cuda(kernel(calls, kind)))
    result = bench.empty(a.nbytes)
    bench.run(module, "k", LANES // 128, 128, bench.put(a), bench.put(b), result, np.int32(LANES))
    return bench.get(result, a.shape, a.dtype)


def check_errors(names: list[str], actual: np.ndarray, exact: np.ndarray, bounds: list[int]) -> None:
    """Results are at most their bound, in units of the last place, from the correctly rounded value."""
    for name, values, wanted, bound in zip(names, actual, exact.astype(actual.dtype), bounds, strict=True):
        error = np.abs(values - wanted) / np.abs(np.spacing(wanted))
        worst = int(error.argmax())
        assert error[worst] <= bound, f"{name}: {values[worst]!r} for {wanted[worst]!r}, {error[worst]} ulp"


@pytest.mark.parametrize("table", [UNARY, BINARY], ids=["unary", "binary"])
def test_single_precision(bench, compile_cuda, rng, table) -> None:
    names = list(table)
    a = np.stack([spread(rng, *table[name][1:3], np.float32) for name in names])
    b = np.stack([spread(rng, *table[name][1:3], np.float32) for name in names])
    arguments = "x" if table is UNARY else "x, y"
    actual = evaluate(bench, compile_cuda, [f"{name}({arguments})" for name in names], "float", a, b)
    columns = (a,) if table is UNARY else (a, b)
    exact = np.array(
        [
            [table[name][0](*map(float, row)) for row in zip(*(c[i] for c in columns), strict=True)]
            for i, name in enumerate(names)
        ]
    )
    check_errors(names, actual, exact, [table[name][3] for name in names])


def test_double_precision(bench, compile_cuda, rng) -> None:
    names = list(DOUBLE)
    a = np.stack([spread(rng, *DOUBLE[name][1:3], np.float64) for name in names])
    actual = evaluate(bench, compile_cuda, [f"{name}(x)" for name in names], "double", a, a)
    exact = np.array([[DOUBLE[name][0](value) for value in row] for name, row in zip(names, a.tolist(), strict=True)])
    check_errors(names, actual, exact, [DOUBLE[name][3] for name in names])


def test_64_bit_integers(bench, compile_cuda, rng) -> None:
    shape = (len(INTEGER), LANES)
    a, b = (rng.integers(-(2**63), 2**63, shape) >> rng.integers(0, 60, shape) for _ in range(2))
    b[b == 0] = 3
    actual = evaluate(bench, compile_cuda, list(INTEGER), "long long", a, b)
    for row, (name, exact) in enumerate(INTEGER.items()):
        expected = [exact(x, y) for x, y in zip(a[row].tolist(), b[row].tolist(), strict=True)]
        np.testing.assert_array_equal(actual[row], expected, err_msg=name)
