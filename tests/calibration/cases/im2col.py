"""im2col tensor copies of 3 to 5 dimensions. PTX ISA manual, "im2col mode"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from lowdnn.driver.base import LaunchConfig
from lowdnn.tensor_map import Im2colMap
from lowdnn.tensor_map import TensorMapDataType as DataType
from lowdnn.tensor_map import TensorMapOobFill as Fill
from lowdnn.tensor_map import TensorMapSwizzle as Swizzle
from tests.calibration.case import Case, MapOf, Output
from tests.calibration.cases.asynchronous import BARRIER_BYTES, FLUSH, REGISTERS, THREADS, barrier, fill, keep, wait
from tests.calibration.cases.program import program

_WINDOW = 8 << 10
_DIMS = {3: (24, 9, 3), 4: (24, 7, 6, 3), 5: (24, 5, 4, 6, 2)}


@dataclass(frozen=True)
class Walk:
    """One copy: the map, the first pixel (c, w, ..., n) and the filter offsets, W first."""

    name: str
    tensor_map: Im2colMap
    at: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.at)

    @property
    def tensor_bytes(self) -> int:
        return self.tensor_map.data_type.size_bytes * int(np.prod(self.tensor_map.dims))

    @property
    def copy_bytes(self) -> int:
        described = self.tensor_map
        return described.data_type.size_bytes * described.channels_per_pixel * described.pixels_per_column

    @property
    def target(self) -> str:
        return f"[%m0, {{{', '.join(map(str, self.at))}}}]"


def cases() -> Iterator[Case]:
    for rank in _DIMS:
        for walk in _walks(rank):
            yield _load(walk)
        yield _store(_walk(rank, "plain", (0,) * (rank - 2), (0,) * (rank - 2), pixels=21))
        yield _store(_walk(rank, "tail", (0,) * (rank - 2), (0,) * (rank - 2), pixels=30, channel=16, pixel=3, image=1))


def _walks(rank: int) -> Iterator[Walk]:
    spatial = rank - 2
    none, one, two = (0,) * spatial, (1,) * spatial, (2,) * spatial
    minus = (-1,) * spatial
    yield _walk(rank, "plain", none, none)
    yield _walk(rank, "pad", minus, minus)
    yield from (_walk(rank, f"pad tap {tap}", minus, minus, offsets=(tap,) * spatial) for tap in (1, 2))
    yield _walk(rank, "uneven taps", minus, minus, offsets=tuple(range(spatial)))
    yield _walk(rank, "uneven corners", tuple(-1 - p for p in range(spatial)), tuple(-2 + p for p in range(spatial)))
    yield _walk(rank, "positive corner", one, none)
    yield _walk(rank, "beyond", minus, one, offsets=two)
    yield _walk(rank, "into the next image", minus, minus, pixel=2, offsets=one, pixels=60)
    yield _walk(rank, "past the last image", none, none, pixel=1, image=_DIMS[rank][-1] - 1, pixels=90)
    yield _walk(rank, "channel tail", minus, minus, channel=16, offsets=one)
    yield _walk(rank, "channels before", none, none, channel=-8)
    for steps in ((2,) * spatial, tuple(1 + p for p in range(spatial)), (3,) * spatial):
        yield _walk(rank, f"steps {steps}", none, none, steps=steps)
        yield _walk(rank, f"steps {steps} pad", minus, minus, steps=steps, offsets=one)
    yield from (
        _walk(rank, f"dilated tap {tap}", (-2,) * spatial, (-2,) * spatial, offsets=(tap,) * spatial) for tap in (2, 4)
    )
    for swizzle in (Swizzle.BYTES_32, Swizzle.BYTES_64, Swizzle.BYTES_128):
        walk = _walk(rank, f"swizzle {swizzle.name}", minus, minus, offsets=one, channels=8 * int(swizzle))
        yield replace(walk, tensor_map=replace(walk.tensor_map, swizzle=swizzle))
    walk = _walk(rank, "nan", minus, minus, channel=16)
    yield replace(
        walk, tensor_map=replace(walk.tensor_map, data_type=DataType.FLOAT16, oob_fill=Fill.NAN_REQUEST_ZERO_FMA)
    )


def _walk(
    rank: int,
    name: str,
    lower: tuple[int, ...],
    upper: tuple[int, ...],
    offsets: tuple[int, ...] = (),
    steps: tuple[int, ...] = (),
    channel: int = 0,
    pixel: int = 0,
    image: int = 0,
    pixels: int = 40,
    channels: int = 16,
) -> Walk:
    """The copy starts ``pixel`` pixels behind the lower corner along W, in ``image``."""
    dims = _DIMS[rank]
    strides = tuple(2 * int(np.prod(dims[:place])) for place in range(1, rank))
    element_strides = (1, *(steps or (1,) * (rank - 2)), 1)
    tensor_map = Im2colMap(DataType.UINT16, 0, dims, strides, lower, upper, channels, pixels, element_strides)
    at = (channel, lower[0] + pixel, *lower[1:], image)
    return Walk(f"{rank}d {name}", tensor_map, at, offsets or (0,) * (rank - 2))


def _load(walk: Walk) -> Case:
    offsets = ", ".join(f"%h{place}" for place in range(len(walk.offsets)))
    moves = "".join(f"mov.u16 %h{place}, {value};\n" for place, value in enumerate(walk.offsets))
    instruction = f"cp.async.bulk.tensor.{walk.rank}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
    body = f"""{REGISTERS}.reg .b16 %h<3>;
{moves}{fill("%i1", _WINDOW)}{barrier(_WINDOW)}
@!%first bra ISSUED;
mbarrier.arrive.expect_tx.shared.b64 %token, [%bar], {walk.copy_bytes};
{instruction} [%base], {walk.target}, [%bar], {{{offsets}}};
ISSUED:
{wait()}{keep("%o0", _WINDOW)}"""
    content = np.arange(walk.tensor_bytes // 2, dtype=np.uint16)
    inputs = (content, np.full(_WINDOW, 0xA5, np.uint8))
    return program(
        f"load {walk.name}",
        body,
        inputs,
        (Output("shared", "u8", _WINDOW),),
        _launch(),
        maps=(MapOf(0, walk.tensor_map),),
    )


def _store(walk: Walk) -> Case:
    body = f"""{REGISTERS}{fill("%i0", _WINDOW)}
@!%first bra DONE;
cp.async.bulk.tensor.{walk.rank}d.global.shared::cta.im2col_no_offs.bulk_group {walk.target}, [%base];
{FLUSH}DONE:
"""
    initial = np.full(walk.tensor_bytes, 0xA5, np.uint8)
    content = np.arange(_WINDOW // 2, dtype=np.uint16)
    outputs = (Output("tensor", "u8", walk.tensor_bytes, initial=initial),)
    return program(f"store {walk.name}", body, (content,), outputs, _launch(), maps=(MapOf(1, walk.tensor_map),))


def _launch() -> LaunchConfig:
    return LaunchConfig((1, 1, 1), (THREADS, 1, 1), _WINDOW + BARRIER_BYTES)
