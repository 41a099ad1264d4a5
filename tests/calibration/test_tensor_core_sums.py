"""How an H200 adds up on its tensor cores: a rule that gives its recorded results bit for bit.

The bounds of the ``mma`` and ``wgmma`` cases follow from it. Products are exact. All of one instruction and C are
aligned with the largest, cut 25 bits below its leading bit, and added; the sum is cut to f32. The size of a product is
the sum of its factors' exponents, as if the product of their fractions never reached 2.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lowdnn.driver.emulated.values.formats import decode
from lowdnn.driver.emulated.values.tensor_core import matrix_product, numbers_of
from tests.calibration.case import Array, Case
from tests.calibration.cases import wgmma
from tests.calibration.families import FAMILIES
from tests.calibration.store import load, path_of

_KEPT_BITS = 25
_NOTHING = -1000


def cut_sum(left: Array, right: Array, c: Array) -> Array:
    """float32 C + A @ B of ``left`` [..., m, k], ``right`` [..., k, n] and ``c`` [..., m, n] by the rule."""
    a, b = left[..., :, None, :], np.swapaxes(right, -1, -2)[..., None, :, :]
    products = a * b
    sizes = np.where(products == 0, _NOTHING, _exponent(a) + _exponent(b))
    own = np.where(c == 0, _NOTHING, _exponent(c))[..., None]
    unit = np.ldexp(1.0, np.concatenate([sizes, own], axis=-1).max(axis=-1) - _KEPT_BITS)[..., None]
    terms = np.concatenate([products, c[..., None]], axis=-1)
    return _cut_to_f32((np.trunc(terms / unit) * unit).sum(axis=-1))


Recorded = Callable[[str, str], tuple[Case, Array]]


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """(a case, the recorded D) by family and name."""
    found = {}
    for family in ("mma", "wgmma"):
        results = load(path_of(family)).results
        found |= {(family, case.name): (case, results[case.name, "d"]) for case in FAMILIES[family]()}
    return lambda family, name: found[family, name]


@pytest.mark.parametrize("numbers", ["random", "spread"])
@pytest.mark.parametrize(
    ("shape", "kind"),
    [("m16n8k8", "f16"), ("m16n8k16", "f16"), ("m16n8k8", "bf16"), ("m16n8k16", "bf16"), ("m16n8k4", "tf32"),
     ("m16n8k8", "tf32")],
)  # fmt: skip
def test_mma(recorded: Recorded, shape: str, kind: str, numbers: str) -> None:
    case, expected = recorded("mma", f"{shape}.f32.{kind}.{kind}-{numbers}")
    layout = matrix_product(shape, kind, kind, "f32", "f32")
    a, b, c = (one.reshape(len(one), 32, -1) for one in case.inputs)
    left = numbers_of(layout.left(a), kind).reshape(len(a), 16, -1).astype(np.float64)
    right = numbers_of(layout.right(b), kind).reshape(len(b), 8, -1).astype(np.float64)
    actual = cut_sum(left, np.swapaxes(right, 1, 2), _accumulators(c).astype(np.float64))
    np.testing.assert_array_equal(actual, _accumulators(expected.reshape(c.shape)))


@pytest.mark.parametrize("spread", [3, 8])
@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32"])
def test_wgmma(recorded: Recorded, kind: str, spread: int) -> None:
    form = wgmma.Form("f32", kind, kind, 64)
    case, expected = recorded("wgmma", f"{form.name} random{spread}")
    left, right = (_rows_of_an_image(image, rows, kind) for image, rows in
                   zip(np.split(case.inputs[0], [wgmma.A_BYTES]), (64, form.n), strict=True))  # fmt: skip
    c = _warpgroup(case.inputs[3]).astype(np.float64)
    np.testing.assert_array_equal(cut_sum(left, right.T, c), _warpgroup(expected))


def _exponent(values: Array) -> Array:
    return np.frexp(values)[1] - 1


def _cut_to_f32(exact: Array) -> Array:
    """float64 to float32 toward zero."""
    nearest = exact.astype(np.float32)
    return np.where(np.abs(nearest) > np.abs(exact), np.nextafter(nearest, np.float32(0)), nearest)


def _accumulators(registers: Array) -> Array:
    """Fragments [warps, 32, 4] of 32-bit registers as float32 [warps, 16, 8]."""
    split = registers.view(np.float32).reshape(-1, 8, 4, 2, 2)
    return split.transpose(0, 3, 1, 2, 4).reshape(-1, 16, 8)


def _warpgroup(registers: Array) -> Array:
    """Registers [128, n / 2] of a warpgroup as float32 [64, n]."""
    split = registers.view(np.float32).reshape(4, 8, 4, -1, 2, 2)
    return split.transpose(0, 4, 1, 3, 2, 5).reshape(64, -1)


def _rows_of_an_image(image: Array, rows: int, kind: str) -> Array:
    """float64 [rows, k] from K-major shared memory with the 128-byte swizzle: 32 bytes of each row."""
    row, byte = np.meshgrid(np.arange(rows), np.arange(32), indexing="ij")
    place = row * 128 + ((byte // 16) ^ (row % 8)) * 16 + byte % 16
    found = np.ascontiguousarray(image.view(np.uint8)[place])
    return (found.view(np.float32) if kind == "tf32" else decode(found.view(np.uint16), kind)).astype(np.float64)
