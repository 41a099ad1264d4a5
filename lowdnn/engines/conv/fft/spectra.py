"""The plan of ``conv_fft_spectra.cu``: spectra of windows of a source or a filter, in the workspace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.conv.fft import cost
from lowdnn.engines.conv.fft.correlation import SpectralCorrelation
from lowdnn.engines.conv.fft.lines import Lines
from lowdnn.engines.conv.fft.tiling import COMPLEX_BYTES, Tiling
from lowdnn.engines.launch import dependent_target, divider, i32, i64, macros, target_label
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, KernelRef, Launch, Pointer, Scalar, ScalarType, Struct, TensorPointer, Work


@dataclass(frozen=True)
class Params:
    """The macros of ``conv_fft_spectra.cu``, described there."""

    POINTS: int
    SPATIAL: int
    X_TYPE: str
    HALF: int
    SPACED: int


@dataclass(frozen=True)
class WindowAxis:
    """One axis of the windows of a tensor (``windows.cuh``).  windows: their number.  extent: positions in a line."""

    windows: int
    extent: int
    step: int
    offset: int
    limit: int
    spacing: int


@dataclass(frozen=True)
class Windows:
    """Windows of a tensor.  values: a line's real values.  is_flipped: whether spatial axes are walked backwards."""

    tensor: Tensor
    values: int
    axes: tuple[WindowAxis, ...]
    is_flipped: bool

    @property
    def lines(self) -> Lines:
        count, windows = self.tensor.dims[0] * self.tensor.dims[1], prod(axis.windows for axis in self.axes)
        return Lines.of(self.tensor, self.values, count, windows)

    @property
    def are_spaced(self) -> bool:
        return any(axis.spacing > 1 for axis in self.axes)

    @property
    def are_half(self) -> bool:
        """Whether no window has a value in the second half of its line: ``HALF`` of ``windows.cuh``."""
        if len(self.axes) > 1 or self.are_spaced:
            return False
        (axis,) = self.axes
        end = self.tensor.dims[2] + axis.offset if axis.windows == 1 else axis.limit
        return min(end, axis.limit) <= self.values // 2

    @property
    def bytes(self) -> int:
        """Bytes of all spectra."""
        lines = self.lines
        return lines.count * lines.windows * lines.points * COMPLEX_BYTES

    def struct(self) -> Struct:
        """The kernel's ``Windows``."""
        tensor, sign = self.tensor, -1 if self.is_flipped else 1
        spatial = [*zip(tensor.dims[2:], tensor.strides[2:], strict=True)]
        start = sum((extent - 1) * stride for extent, stride in spatial) if self.is_flipped else 0
        axes = zip(self.axes, spatial, strict=True)
        return Struct(
            (
                TensorPointer(tensor.uid, start * tensor.element_bytes),
                *i64(tensor.strides[:2]),
                *dividers((tensor.dims[1], self.lines.windows)),
                *dividers(axis.windows for axis in self.axes),
                *dividers(axis.extent for axis in self.axes),
                *(_axis(axis, extent, sign * stride) for axis, (extent, stride) in axes),
            )
        )


def source_windows(correlation: SpectralCorrelation, tiling: Tiling) -> Windows:
    """The windows of the source; the whole of it if ``tiling.convolves``."""
    axes = tuple(WindowAxis(a.windows, a.extent, a.step, a.axis.offset, a.extent, 1) for a in tiling.axes)
    if tiling.convolves:
        (whole,) = tiling.axes
        axes = (WindowAxis(1, whole.extent, whole.step, 0, whole.axis.sources, 1),)
    return Windows(correlation.source, tiling.values, axes, correlation.source_is_flipped)


def tap_windows(correlation: SpectralCorrelation, tiling: Tiling) -> Windows:
    """The pieces of the filter; backwards if ``tiling.convolves``."""
    axes = (WindowAxis(a.pieces, a.extent, a.piece, 0, a.piece, a.axis.tap_spacing) for a in tiling.axes)
    is_flipped = correlation.taps_are_flipped != tiling.convolves
    return Windows(correlation.taps, tiling.values, tuple(axes), is_flipped)


def spectra_step(
    windows: Windows, scale: float, to: Pointer, arch: ArchSpec, conjugates: bool = False
) -> tuple[KernelRef, Launch]:
    """The kernel and the launch that write the spectra of ``windows``, or their conjugates, times ``scale``, in the
    order of lines."""
    tensor, lines, target = windows.tensor, windows.lines, dependent_target(arch)
    params = Params(
        POINTS=lines.points,
        SPATIAL=len(windows.axes),
        X_TYPE=dtypes.info(tensor.data_type).c_type,
        HALF=int(windows.are_half),
        SPACED=int(windows.are_spaced),
    )
    form = f"{dtypes.info(tensor.data_type).short_name}_{params.SPATIAL}d" + "h" * params.HALF + "s" * params.SPACED
    kernel = KernelRef(
        name=f"conv_fft_spectra_{params.POINTS}_{form}_{target_label(target)}",
        source="conv/fft/conv_fft_spectra.cu",
        target=target,
        parameters=macros(params),
    )
    scales = (Scalar(ScalarType.F32, factor) for factor in (scale, -scale if conjugates else scale))
    arguments = Struct((lines.struct(), windows.struct(), to, *scales, *i32((lines.count,))))
    return kernel, lines.launch(arguments, spectra_work(windows), arch)


def spectra_work(windows: Windows) -> Work:
    """The work of ``spectra_step``'s launch."""
    return cost.spectra_work(windows.lines, windows.tensor, windows.are_spaced, windows.are_half)


def dividers(divisors: Iterable[int]) -> tuple[Argument, ...]:
    """The kernel's ``Divider`` for each divisor."""
    return tuple(Struct(divider(divisor)) for divisor in divisors)


def _axis(axis: WindowAxis, elements: int, stride: int) -> Struct:
    """The kernel's ``WindowAxis``."""
    numbers = i32((axis.step, axis.offset, axis.limit, elements))
    return Struct((*numbers, *dividers((axis.spacing,)), *i64((stride,))))
