"""Random ``SdpaForward`` operations, with everything that their descriptors may have, in types and sizes that no kernel
of attention takes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lowdnn import dtypes
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.ops.base import HasPorts
from lowdnn.ops.block_mask import mask_dims
from lowdnn.ops.diagonal_band_mask import DiagonalBandMask
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.sdpa_forward import SdpaForward
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.tensor import Tensor, packed_strides
from tests.support.data import real_values
from tests.support.running import Arrays

_FLOATS = (DataType.HALF, DataType.BFLOAT16, DataType.FLOAT, DataType.DOUBLE)
_INTEGERS = (DataType.INT32, DataType.INT64)
_PAGE = 4


@dataclass(frozen=True)
class Modifier:
    """A sub-graph of scores."""

    operations: tuple[HasPorts, ...]


@dataclass
class Drawn:
    """An operation, and the values of its inputs by uid."""

    rng: np.random.Generator
    inputs: dict[int, Any] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        rng = self.rng
        self.batch, self.queries, self.keys = (int(rng.integers(1, most)) for most in (4, 10, 14))
        self.k_heads, self.v_heads = (int(rng.choice([1, 2])) for _ in range(2))
        self.heads = self.k_heads * self.v_heads
        self.size, self.size_v = (int(rng.choice([1, 5, 12, 20, 264])) for _ in range(2))
        self.lengths = {
            "q": rng.integers(0, self.queries + 1, self.batch),
            "kv": rng.integers(0, self.keys + 1, self.batch),
        }
        self.is_ragged = self.happens(0.4)

    def happens(self, chance: float) -> bool:
        return bool(self.rng.random() < chance)

    def operation(self) -> SdpaForward:
        scores = (self.batch, self.heads, self.queries, self.keys)
        options = self._lengths() | self._dropout(scores) | self._modifier(scores)
        if self.happens(0.3):
            mask = self.tensor(mask_dims(scores), DataType.UINT8)
            self.inputs[mask.uid] = self.rng.integers(0, 256, mask.dims).astype(np.uint8)
            options["block_mask"] = mask
        if self.happens(0.7):
            options["scale"] = self._one(DataType.FLOAT, np.full(1, max(self.size, 1) ** -0.5))
        q = self.rows((self.batch, self.heads, self.queries, self.size), "q")
        has_lengths = "seq_len_kv" in options or "cu_seq_len_kv" in options
        k, v = (
            self._keys(heads, size, f"page_table_{port}", options, has_lengths)
            for port, heads, size in (("k", self.k_heads, self.size), ("v", self.v_heads, self.size_v))
        )
        o = self.rows((self.batch, self.heads, self.queries, self.size_v), "q", is_output=True)
        return SdpaForward(q, k, v, o, softmax=self._softmax(scores), **options)

    def tensor(self, dims: tuple[int, ...], data_type: DataType, **more: Any) -> Tensor:
        self.count += 1
        return Tensor(self.count, data_type, dims, packed_strides(dims), 16, **more)

    def rows(
        self, dims: tuple[int, ...], of: str, *, is_output: bool = False, data_type: DataType | None = None
    ) -> Tensor:
        """A tensor of heads, perhaps ragged.  of: the tensor whose lengths it has."""
        kind = data_type or DataType(self.rng.choice(_FLOATS))
        batch, heads, most, size = dims
        if not (self.is_ragged and self.happens(0.8)):
            order = (0, 1, 2, 3) if self.happens(0.5) else (0, 2, 1, 3)
            x = replace(
                self.tensor(dims, kind), strides=packed_strides((*dims[:3], size + 3), order), alignment_bytes=8
            )
            if not is_output:
                self.inputs[x.uid] = real_values(self.rng, dims, kind)
            return x
        first = np.concatenate([[0], np.cumsum(self.lengths[of])])
        offsets = self._integers(first * (heads * size), (batch + 1, 1, 1, 1))
        strides = (most * heads * size, size, heads * size, 1)
        x = replace(self.tensor(dims, kind), strides=strides, ragged_offset=offsets)
        if not is_output:
            self.inputs[x.uid] = real_values(self.rng, (1, heads, batch * most, size), kind)
        return x

    def _keys(self, heads: int, size: int, table: str, options: dict[str, Any], has_lengths: bool) -> Tensor:
        """The tensor k or v, perhaps in pages."""
        if not (has_lengths and self.happens(0.4)):
            return self.rows((self.batch, heads, self.keys, size), "kv")
        entries = -(-self.keys // _PAGE)
        dims = (self.batch * entries, heads, _PAGE, size)
        container = self.tensor(dims, DataType(self.rng.choice(_FLOATS)))
        self.inputs[container.uid] = real_values(self.rng, dims, container.data_type)
        pages = self.rng.permutation(self.batch * entries).astype(np.int32)
        x = self.tensor((self.batch, 1, entries, 1), DataType.INT32)
        if self.happens(0.5):
            counts = -(-self.lengths["kv"] // _PAGE)
            sums = self._integers(np.concatenate([[0], np.cumsum(counts)]), (self.batch + 1, 1, 1, 1))
            x = replace(x, ragged_offset=sums)
            self.inputs[x.uid] = pages.reshape(1, 1, -1, 1)
        else:
            self.inputs[x.uid] = pages.reshape(x.dims)
        options[table] = x
        return container

    def _lengths(self) -> dict[str, Any]:
        """The lengths of keys and queries; both if sequences are packed, otherwise any of them."""
        found = {}
        for of, lengths in self.lengths.items():
            if not (self.is_ragged or self.happens(0.5)):
                continue
            if self.happens(0.5):
                found[f"seq_len_{of}"] = self._integers(lengths, (self.batch, 1, 1, 1))
            else:
                sums = np.concatenate([[0], np.cumsum(lengths)])
                found[f"cu_seq_len_{of}"] = self._integers(sums, (self.batch + 1, 1, 1, 1))
        return found

    def _dropout(self, scores: tuple[int, ...]) -> dict[str, Any]:
        if self.happens(0.6):
            return {}
        found: dict[str, Any] = {"dropout_probability": 0.25}
        found |= {f"dropout_{name}": self._one(DataType.INT64, np.full(1, 5)) for name in ("seed", "offset")}
        if self.happens(0.6):
            found["rng_dump"] = self.tensor(scores, DataType(self.rng.choice([*_FLOATS, DataType.INT8])))
        return found

    def _modifier(self, scores: tuple[int, ...]) -> dict[str, Any]:
        """A modifier of scores that adds a bias and then masks a band."""
        if self.happens(0.5):
            return {}
        before, between, after = (self.tensor(scores, DataType.FLOAT, is_virtual=True) for _ in range(3))
        bias = self.tensor((1, self.heads, self.queries, self.keys), DataType(self.rng.choice(_FLOATS)))
        self.inputs[bias.uid] = real_values(self.rng, bias.dims, bias.data_type)
        add = PointwiseOperation(Pointwise(PointwiseMode.ADD, DataType.FLOAT), x=before, b=bias, y=between)
        bound = self._one(DataType(self.rng.choice(_INTEGERS)), self.rng.integers(0, 5, 1))
        mask = DiagonalBandMask(between, after, PointwiseMode.CMP_GE, shift_right_bound=bound)
        return {
            "subgraph": Modifier((add, mask)),
            "subgraph_input_uid": before.uid,
            "subgraph_output_uid": after.uid,
        }

    def _softmax(self, scores: tuple[int, ...]) -> Softmax:
        """The softmax with any of its statistics, and perhaps a sink."""
        given: dict[str, Any] = {}
        for port in ("stats", "max", "sum_exp"):
            if self.happens(0.5):
                given[port] = self.rows((*scores[:3], 1), "q", is_output=True, data_type=DataType.FLOAT)
        if self.happens(0.3):
            sink = self.tensor((1, self.heads, 1, 1), DataType.FLOAT)
            self.inputs[sink.uid] = real_values(self.rng, sink.dims, sink.data_type)
            given["sink"] = sink
        x, y = (self.tensor(scores, DataType.FLOAT, is_virtual=True) for _ in range(2))
        return Softmax(x, y, **given, stats_log2=self.happens(0.3))

    def _one(self, data_type: DataType, values: Any) -> Tensor:
        tensor = self.tensor((1, 1, 1, 1), data_type)
        self.inputs[tensor.uid] = values.reshape(1, 1, 1, 1).astype(dtypes.info(data_type).storage)
        return tensor

    def _integers(self, values: Any, dims: tuple[int, ...]) -> Tensor:
        tensor = self.tensor(dims, DataType(self.rng.choice(_INTEGERS)))
        self.inputs[tensor.uid] = values.reshape(dims).astype(dtypes.info(tensor.data_type).storage)
        return tensor


def draw(rng: np.random.Generator) -> tuple[SdpaForward, Arrays]:
    """See ``Drawn``."""
    drawn = Drawn(rng)
    return drawn.operation(), drawn.inputs
