"""Attention, its gradients and band masks for growing graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.ops.block_mask import mask_dims
from lowdnn.ops.diagonal_band_mask import DiagonalBandMask
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.sdpa_centred_backward import SdpaCentredBackward
from lowdnn.ops.sdpa_forward import SdpaForward
from lowdnn.ops.sdpa_fp8_backward import LARGEST, NUMBERS, SdpaFp8Backward
from lowdnn.ops.sdpa_gradients import SdpaGradients
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.tensor import Tensor
from tests.support.random_graphs.growth import SMALL_FLOATS, Growth

_HEADS = (DataType.HALF, DataType.BFLOAT16)
_COMPARISONS = (PointwiseMode.CMP_GE, PointwiseMode.CMP_GT, PointwiseMode.CMP_LE, PointwiseMode.CMP_LT)
#: Sizes of heads that tensor cores take in 16 bits.
_SIZES = (8, 16, 32, 64)


@dataclass(frozen=True)
class Heads:
    """Extents of one attention."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    size: int
    value_size: int


def sdpa_forward(growth: Growth) -> None:
    """An ``SdpaForward`` with any of lengths, a sink, dropout, statistics, a block mask and a scale."""
    kind = growth.choose((*_HEADS, *_HEADS, DataType.FLOAT, DataType.DOUBLE))
    heads = _heads(growth)
    q, k, v = _operands(growth, heads, kind)
    options: dict[str, Any] = {}
    if growth.chance(0.4):
        options["scale"] = growth.scalar(4, DataType.FLOAT, 0.25, name="scale")
    options |= _lengths(growth, heads)
    rows = (heads.batch, heads.heads, heads.queries, 1)
    if growth.chance(0.5):
        options["softmax"] = _softmax(growth, heads)
    elif growth.chance(0.5):
        options["stats"] = growth.output(rows, DataType.FLOAT, name="stats")
    if growth.chance(0.15):
        dims = mask_dims((*rows[:3], heads.keys))
        options["block_mask"] = growth.packed_input(dims, DataType.UINT8, growth.rng.integers(0, 256, dims), "mask")
    if growth.chance(0.2):
        options |= {"dropout_probability": 0.25}
        options |= {
            f"dropout_{name}": growth.packed_input((1,) * 4, DataType.INT64, _ones(5), name)
            for name in ("seed", "offset")
        }
        if growth.chance(0.3):
            options["rng_dump"] = growth.output((*rows[:3], heads.keys), DataType.FLOAT, name="rng_dump")
    o = growth.output((*rows[:3], heads.value_size), kind, name="o")
    growth.add(SdpaForward(q, k, v, o, **options))


def sdpa_backward(growth: Growth) -> None:
    heads, kind = _heads(growth), growth.choose((*_HEADS, *_HEADS, DataType.FLOAT))
    ports = _gradient_ports(growth, heads, kind)
    if growth.chance(0.3):
        ports["dbias"] = growth.output(_scores(heads), DataType.FLOAT, name="dbias")
    _add_gradients(growth, SdpaBackward, ports, heads)


def sdpa_centred_backward(growth: Growth) -> None:
    heads, kind = _heads(growth), growth.choose((*_HEADS, DataType.FLOAT))
    ports = _gradient_ports(growth, heads, kind)
    if growth.chance(0.5):
        ports["dq"] = growth.output(ports["q"].dims, DataType.FLOAT, name="dq")
    ports["centre_scales"] = tuple(
        growth.scalar(4, DataType.FLOAT, growth.choose((0.5, 1.0, 1.5)), name="centre_scale")
        for _ in range(growth.choose((1, 2)))
    )
    _add_gradients(growth, SdpaCentredBackward, ports, heads)


def sdpa_fp8_backward(growth: Growth) -> None:
    heads = _heads(growth, sizes=(16, 32, 64))
    ports = _gradient_ports(growth, heads, growth.choose(SMALL_FLOATS))
    ports["numbers"] = tuple(
        growth.input((1, 1, 1, 1), DataType.FLOAT, np.full((1, 1, 1, 1), growth.choose((0.5, 1.0, 2.0))), name=name)
        for name in NUMBERS
    )
    ports["largest"] = tuple(growth.output((1, 1, 1, 1), DataType.FLOAT, name=f"amax_{port}") for port in LARGEST)
    _add_gradients(growth, SdpaFp8Backward, ports, heads)


def sdpa_gradients(growth: Growth) -> None:
    """The gradients as their descriptor has them: an ``SdpaGradients``, which stands for an ``SdpaBackward``."""
    heads, kind = _heads(growth), growth.choose((*_HEADS, DataType.FLOAT))
    ports = _gradient_ports(growth, heads, kind)
    if growth.chance(0.3):
        ports["dbias"] = growth.output(_scores(heads), DataType.FLOAT, name="dbias")
    growth.add(SdpaGradients(**ports, **_results(growth, SdpaBackward, ports, heads)))


def diagonal_band_mask(growth: Growth) -> None:
    x = growth.value(
        lambda: growth.input(tuple(growth.extent(name, 9) for name in "bhqk"), growth.float_type()),
        lambda tensor: tensor.rank == 4 and dtypes.info(tensor.data_type).kind is dtypes.Kind.FLOAT,
    )
    b = growth.scalar(4, DataType.FLOAT, -3.0, name="b") if growth.chance(0.5) else None
    bound = growth.packed_input((1,) * 4, DataType.INT32, _ones(2), "bound")
    bounds = {growth.choose(("left_bound", "shift_right_bound")): bound}
    y = growth.output(x.dims, growth.float_type())
    growth.add(DiagonalBandMask(x, y, growth.choose(_COMPARISONS), b, **bounds))


def _heads(growth: Growth, sizes: tuple[int, ...] = ()) -> Heads:
    """Extents with head sizes of ``sizes``, or any size."""
    kv_heads = growth.extent("kv_heads", 2)
    size, value_size = (
        growth.choose(sizes or _SIZES) if sizes or growth.chance(0.5) else growth.extent(name, 12)
        for name in ("size", "value_size")
    )
    return Heads(
        growth.extent("batch", 2),
        kv_heads * growth.choose((1, 1, 2)),
        kv_heads,
        growth.extent("queries", 20),
        growth.extent("keys", 20),
        size,
        size if sizes else value_size,
    )


def _scores(heads: Heads) -> tuple[int, ...]:
    return (heads.batch, heads.heads, heads.queries, heads.keys)


def _operands(growth: Growth, heads: Heads, kind: DataType) -> tuple[Tensor, Tensor, Tensor]:
    q = growth.like((heads.batch, heads.heads, heads.queries, heads.size), kind, "q")
    k = growth.input((heads.batch, heads.kv_heads, heads.keys, heads.size), kind, name="k")
    v = growth.input((heads.batch, heads.kv_heads, heads.keys, heads.value_size), kind, name="v")
    return q, k, v


def _lengths(growth: Growth, heads: Heads) -> dict[str, Tensor]:
    """Lengths of queries and keys, each in one of two forms or not at all."""
    found = {}
    for port, most in (("seq_len_q", heads.queries), ("seq_len_kv", heads.keys)):
        lengths = growth.rng.integers(0, most + 1, heads.batch)
        if growth.chance(0.25):
            found[port] = growth.packed_input(
                (heads.batch, 1, 1, 1), DataType.INT32, lengths.reshape(-1, 1, 1, 1), port
            )
        elif growth.chance(0.1):
            sums = np.cumsum([0, *lengths]).reshape(-1, 1, 1, 1)
            found[f"cu_{port}"] = growth.packed_input(sums.shape, DataType.INT32, sums, port)
    return found


def _softmax(growth: Growth, heads: Heads) -> Softmax:
    """The softmax that names the statistics; its x and y stand for inner tensors."""
    inside = [growth.output(_scores(heads), DataType.FLOAT, is_stored=False) for _ in range(2)]
    rows = (*_scores(heads)[:3], 1)
    statistics = [
        growth.output(rows, DataType.FLOAT, name=name) if growth.chance(0.4) else None
        for name in ("stats", "max", "sum_exp")
    ]
    sink = growth.input((1, heads.heads, 1, 1), DataType.FLOAT, name="sink") if growth.chance(0.4) else None
    return Softmax(*inside, *statistics, sink=sink, axes=(3,))


def _gradient_ports(growth: Growth, heads: Heads, kind: DataType) -> dict[str, Any]:
    """Operands and results by port, without o and stats."""
    q, k, v = _operands(growth, heads, kind)
    d_o = growth.input((*q.dims[:3], heads.value_size), kind, name="d_o")
    gradients = {
        f"d{name}": growth.output(tensor.dims, kind, name=f"d{name}") for name, tensor in (("q", q), ("k", k), ("v", v))
    }
    ports = {"q": q, "k": k, "v": v, "d_o": d_o, **gradients}
    if growth.chance(0.5):
        ports["scale"] = growth.scalar(4, DataType.FLOAT, 0.25, name="scale")
    return ports | {port: tensor for port, tensor in _lengths(growth, heads).items() if not port.startswith("cu_")}


def _add_gradients(growth: Growth, cls: type[SdpaBackward], ports: dict[str, Any], heads: Heads) -> None:
    """Adds the gradients, with a band."""
    band = {"left": growth.choose((0, 3))} if growth.chance(0.2) else {}
    band |= {"right": growth.choose((0, 2))} if growth.chance(0.3) else {}
    band |= {"is_bottom_right": growth.chance(0.5)} if band else {}
    growth.add(cls(**ports, **_results(growth, cls, ports | band, heads), **band))


def _results(growth: Growth, cls: type[SdpaBackward], options: dict[str, Any], heads: Heads) -> dict[str, Tensor]:
    """The o and stats that belong to the operands, by port."""
    rows = (*_scores(heads)[:3], 1)
    made = {
        "o": growth.input((*rows[:3], heads.value_size), options["q"].data_type, name="o"),
        "stats": growth.input(rows, DataType.FLOAT, name="stats"),
    }
    operation = cls(**options, **made)
    growth.redraw(made, operation.forward(growth.operands(operation)))
    return made


def _ones(value: int) -> NDArray[Any]:
    """A tensor of one number, of rank 4."""
    return np.full((1, 1, 1, 1), value)
