"""The transform by itself: spectra of windows against ``numpy.fft`` in float64, and back."""

from __future__ import annotations

from math import log2
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.engines.conv.fft.correlation import SpectralCorrelation
from lowdnn.engines.conv.fft.spectra import WindowAxis, Windows, spectra_step
from lowdnn.engines.conv.fft.targets import targets_step
from lowdnn.engines.conv.fft.tiling import WINDOW_VALUES, TiledAxis, Tiling, butterfly_values
from lowdnn.enums import DataType
from lowdnn.graph.pattern import match_anchored
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Launch, Plan, PlanTensor, TensorPointer
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.runtime import download, upload

LINES = 3
SPECTRA_UID = 99
#: The greatest norm of a transform's error, relative to the spectrum's and to log2 of a line's values.
NORM_BOUND = 2.0**-25


def expected_spectra(x: NDArray[np.float32]) -> NDArray[np.complex128]:
    """sum over j of x[..., j] u^j for the roots u = exp(2 pi i (f + 1/4) / N) of u^N = i, in the order of f."""
    points = x.shape[-1] // 2
    z = x[..., :points] + 1j * x[..., points:].astype(np.float64)
    return np.fft.ifft(z * np.exp(0.5j * np.pi / points * np.arange(points)), axis=-1) * points


def frequencies(points: int) -> NDArray[np.int64]:
    """f of each value of a spectrum, in the order in which the kernels store them."""
    places = np.zeros(1, np.int64)
    while places.size < points:
        places = np.concatenate([2 * places, 2 * places + 1])  # bits in reverse order
    return places.reshape(-1, butterfly_values(points)).T.reshape(-1)


def run(
    runtime: Runtime, step: tuple[KernelRef, Launch], given: tuple[int, NDArray[np.float32]], to: int, floats: int
) -> NDArray[np.float32]:
    """The ``floats`` floats that a launch writes to the tensor with uid ``to``.  given: uid and values of the input."""
    kernel, launch = step
    sizes = {given[0]: given[1].size, to: floats}
    tensors = tuple(PlanTensor(uid, "", DataType.FLOAT, 4 * size, 16, uid == to) for uid, size in sizes.items())
    loaded = runtime.load(Plan("transform", 0, "", SM_90A.name, (), (kernel,), (launch,), tensors))
    source, target = upload(runtime, given[1]), upload(runtime, np.full(floats, np.nan, np.float32))
    loaded.execute({given[0]: source.address, to: target.address}, 0)
    found = download(target, np.float32)
    source.close()
    target.close()
    return found


def values_of(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(fresh_seed()).standard_normal((LINES, count), np.float32)


def norm_error(found: NDArray[Any], expected: NDArray[Any], count: int) -> float:
    """The norm of the error relative to that of ``expected`` and to log2 of ``count``."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected) / log2(count))


@pytest.mark.parametrize("count", WINDOW_VALUES)
def test_spectra(device: Runtime, count: int) -> None:
    x = values_of(count)
    tensor = Tensor(1, DataType.FLOAT, (1, LINES, count), (LINES * count, count, 1), 16)
    windows = Windows(tensor, count, (WindowAxis(1, count, count, 0, count, 1),), is_flipped=False)
    step = spectra_step(windows, 0.5, TensorPointer(SPECTRA_UID), SM_90A)
    found = run(device, step, (1, x), SPECTRA_UID, x.size).view(np.complex64).reshape(LINES, -1)
    expected = 0.5 * expected_spectra(x)[:, frequencies(count // 2)]
    assert norm_error(found, expected, count) < NORM_BOUND


@pytest.mark.parametrize("count", [64, 128, 512, 4096])
@pytest.mark.parametrize("offset", [-3, 0, 5])
def test_conjugate_spectra_of_windows_without_a_second_half(device: Runtime, count: int, offset: int) -> None:
    """Two windows that overlap, the first of which begins before the tensor where the offset is positive."""
    points = count // 2
    x = values_of(points + 9)
    tensor = Tensor(1, DataType.FLOAT, (1, LINES, x.shape[1]), (x.size, x.shape[1], 1), 16)
    windows = Windows(tensor, count, (WindowAxis(2, count, 7, offset, points - 2, 1),), is_flipped=False)
    assert windows.are_half
    step = spectra_step(windows, 2.0, TensorPointer(SPECTRA_UID), SM_90A, conjugates=True)
    found = run(device, step, (1, x), SPECTRA_UID, 2 * LINES * count).view(np.complex64).reshape(LINES, 2, -1)
    padded = np.pad(x, ((0, 0), (8, count)))
    for window in range(2):
        line = padded[:, 8 + 7 * window - offset :][:, :count].copy()
        line[:, points - 2 :] = 0
        expected = 2 * expected_spectra(line).conj()[:, frequencies(points)]
        assert norm_error(found[:, window], expected, count) < NORM_BOUND


@pytest.mark.parametrize("count", WINDOW_VALUES)
def test_values_of_spectra(device: Runtime, count: int) -> None:
    """The kernel that writes targets, from spectra of numbers that are known."""
    x = values_of(count)
    matched = match_anchored(
        parse_case(f"conv n=1 c=2 k={LINES} hw={count} rs=1 layout=nchw").graph(), ConvolutionForward
    )
    assert not isinstance(matched, str)
    correlation = SpectralCorrelation.of(matched)
    tiling = Tiling(count, (TiledAxis(correlation.axes[0], count, 1),))
    spectra = expected_spectra(x)[:, frequencies(count // 2)] / (count // 2)
    given = np.ascontiguousarray(spectra.astype(np.complex64)).view(np.float32).reshape(-1)
    step = targets_step(correlation, tiling, TensorPointer(SPECTRA_UID), SM_90A)
    found = run(device, step, (SPECTRA_UID, given), matched.anchor.y.uid, x.size).reshape(LINES, count)
    assert norm_error(found, x.astype(np.float64), count) < NORM_BOUND


def test_infinities_fill_their_line_alone(device: Runtime) -> None:
    x = values_of(64)
    x[1, 5] = np.inf
    tensor = Tensor(1, DataType.FLOAT, (1, LINES, 64), (LINES * 64, 64, 1), 16)
    windows = Windows(tensor, 64, (WindowAxis(1, 64, 64, 0, 64, 1),), is_flipped=False)
    step = spectra_step(windows, 1.0, TensorPointer(SPECTRA_UID), SM_90A)
    found = run(device, step, (1, x), SPECTRA_UID, x.size).view(np.complex64).reshape(LINES, -1)
    assert not np.isfinite(found[1]).any()
    assert np.isfinite(found[[0, 2]]).all()
