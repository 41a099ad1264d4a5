"""Attention, node by node.

sdpa b=2 h=8 hk=2 q=100 kv=120 d=64 causal=top_left dtype=bf16 stats=yes
sdpa b=2 h=8 hk=2 q=1 kv=500 d=64 page=16 lengths=yes
sdpa b=4 h=8 hk=2 q=100 kv=120 d=64 ragged=yes lengths=yes stats=yes
sdpa b=2 h=4 q=100 kv=120 d=64 dv=128 left=32 right=0 lengths=yes scores=bias layout=bshd dropout=0.1
sdpa b=2 h=4 q=100 kv=120 d=64 causal=top_left dtype=e4m3 out=bf16
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.cases import packed, pages, steps, text
from lowdnn.cases.base import Case, Inputs
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.chains import same_dims_chain
from lowdnn.cases.text import key
from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp, RngDistribution
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.block_mask import mask_dims
from lowdnn.ops.pointwise import Pointwise
from lowdnn.ops.rng import Rng
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import BadParamError

#: Layouts of heads: dimensions of memory from the outermost in, of (batch, heads, length, size).
ORDERS = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3), "sbhd": (2, 0, 1, 3)}

_EXCHANGED = (0, 1, 3, 2)
#: Ranges from which the scales of fp8 are drawn: weights up to 1 and outputs of a few units fill the range of e4m3.
_SCALES = {
    "descale_q": (0.5, 1.5),
    "descale_k": (0.5, 1.5),
    "descale_v": (0.5, 1.5),
    "scale_s": (200.0, 400.0),
    "descale_s": (1 / 400, 1 / 200),
    "scale_o": (8.0, 32.0),
}
#: Scales that are not 1 in benchmarks.
_EVEN_SCALES = {"scale_s": 256.0, "descale_s": 1 / 256}


@dataclass(frozen=True)
class AttentionCase(Case):
    """o = softmax(masked(q k^T / sqrt(d))) v for q (b, h, q, d), k (b, hk, kv, d), v (b, hv, kv, dv).

    hk, hv, kv, dv: by default as h, hk, q, d.  causal: a query sees the keys up to its own place, counted from the
    first (top_left) or from the last ones on (bottom_right).  left, right: how far it sees from its place, -1 without
    bound.
    blocks: whether a mask leaves half of the tiles of 128 queries and keys out.
    lengths: whether each batch has a number of keys of its own; both: of queries, too.
    page: rows of the pages that k and v lie in, with lengths.
    ragged: whether sequences are packed, in q, k, v, the output and the statistics; about half of the rows
    that padded ones had, of random or (even) of equal lengths.  scores: steps on the scores, before the masks.
    sink: whether each head has a logit that joins the sums of its rows; of queries behind a length, too (all).
    stats: whether the log-sum-exp (log2: to base 2), maximum and sum of rows are stored; lse: the first alone.
    dtype: fp8 brings scales. q, k, v and the weights have a descale each; the weights and the output have a scale
    each, which precedes their rounding, and their largest magnitudes before it are stored.
    """

    family: ClassVar[str] = "sdpa"

    b: int = key(text.integer(0))
    h: int = key(text.integer(0))
    q: int = key(text.integer(0))
    d: int = key(text.integer(0))
    hk: int = key(text.integer(0), 0)
    hv: int = key(text.integer(0), 0)
    kv: int = key(text.integer(0), 0)
    dv: int = key(text.integer(0), 0)
    causal: str = key(text.choice("no", "top_left", "bottom_right"), "no")
    left: int = key(text.integer(-1), -1)
    right: int = key(text.integer(-1), -1)
    blocks: str = key(text.choice("no", "yes"), "no")
    lengths: str = key(text.choice("no", "yes", "both"), "no")
    page: int = key(text.integer(0), 0)
    ragged: str = key(text.choice("no", "yes", "even"), "no")
    scores: tuple[str, ...] = key(text.names(steps.NAMES), ())
    dropout: float = key(text.share(), 0.0)
    sink: str = key(text.choice("no", "yes", "all"), "no")
    stats: str = key(text.choice("no", "yes", "log2", "lse"), "no")
    layout: str = key(text.choice(*ORDERS), "bhsd")
    dtype: DataType = key(text.data_type(), DataType.BFLOAT16)
    out: DataType | None = key(text.data_type(), None)
    align: int = key(text.integer(1), 16)

    def graph(self) -> OperationGraph:
        builder = CaseBuilder(alignment_bytes=self.align)
        q = self._heads(builder, (self.b, self.h, self.q, self.d), "q")
        lengths = self._lengths(builder)
        k = self._keys(builder, (self.b, self._hk, self._kv, self.d), "k", lengths)
        v = self._keys(builder, (self.b, self.hv or self._hk, self._kv, self.dv or self.d), "v", lengths)
        scale = builder.constant(4, DataType.FLOAT, max(self.d, 1) ** -0.5, name="scale")
        scores = builder.pointwise(PointwiseMode.MUL, builder.matmul(q, self._transposed(builder, k)), scale)
        if self.is_fp8:
            scores = _scaled(builder, scores, "descale_q", "descale_k")
        scores = same_dims_chain(self.scores, scores, self.dtype, DataType.FLOAT).build(
            builder, scores, None, Layout.ROW_MAJOR
        )
        existing = builder.tensor((self.b, 1, 1, 1), DataType.INT64, name="queries") if self.lengths == "both" else None
        weights = builder.softmax(
            self._masked(builder, scores, existing, lengths),
            (3,),
            sink=self._sink(builder, existing),
            statistics=None if self.stats == "no" else DataType.FLOAT,
            names=("stats",) if self.stats == "lse" else ("stats", "max", "sum_exp"),
            stats_log2=self.stats == "log2",
        )
        if self.is_fp8:
            _largest(builder, weights)
            weights = _scaled(builder, weights, "scale_s")
        if self.dropout:
            kept = builder.rng(Rng(RngDistribution.BERNOULLI, probability=1 - self.dropout), weights.dims, seed=7)
            weights = builder.pointwise(PointwiseMode.MUL, weights, kept, alpha1=1 / (1 - self.dropout))
        weights = builder.pointwise(PointwiseMode.IDENTITY, weights, virtual=self.dtype)
        out = self.out or self.dtype
        if self.is_fp8:
            o = _scaled(builder, builder.matmul(weights, v), "descale_s", "descale_v")
            _largest(builder, o)
            _scaled(builder, o, "scale_o", store=out)
        else:
            builder.matmul(weights, v, store=out)
        return packed.with_packed_outputs(builder) if self.ragged != "no" else builder.graph()

    def routing(self, seed: int) -> Inputs:
        """Inputs that say where rows are, for benchmarks: those of a full cache or of self-attention.

        They are page tables, one set of offsets for every ragged tensor, and for each batch the length that the offsets
        give, or all keys. The scales of fp8 are powers of two whose product is 1."""
        rng, given = np.random.default_rng([seed, 1]), {tensor.name: tensor for tensor in self.graph().inputs}
        values = {name: pages.table_values(rng, tensor) for name, tensor in given.items() if pages.is_table(tensor)}
        values |= {name: np.full(given[name].dims, _EVEN_SCALES.get(name, 1.0)) for name in given.keys() & _SCALES}
        lengths = np.full(self.b, self._kv)
        if self.ragged != "no":
            offsets = self._values(rng, given["q_ragged_offset"], exact=True)
            values |= {name: offsets for name, tensor in given.items() if packed.is_offsets(tensor)}
            lengths = np.diff(offsets.flatten())
        if self.lengths != "no":
            values["lengths"] = lengths.reshape(given["lengths"].dims)
        return {given[name].uid: dtypes.from_float64(array, given[name].data_type) for name, array in values.items()}

    @property
    def length(self) -> int:
        return max(self.d, self._kv)

    @property
    def is_exact(self) -> bool:
        return False

    @property
    def is_fp8(self) -> bool:
        return self.dtype in dtypes.FP8_TYPES

    @property
    def _hk(self) -> int:
        return self.hk or self.h

    @property
    def _kv(self) -> int:
        return self.kv or self.q

    def _heads(self, builder: CaseBuilder, dims: tuple[int, ...], name: str) -> Tensor:
        if self.ragged != "no":
            return packed.load(builder, dims, self.dtype, name)
        return builder.tensor(dims, self.dtype, strides=packed_strides(dims, ORDERS[self.layout]), name=name)

    def _lengths(self, builder: CaseBuilder) -> Tensor | None:
        if self.page and (self.lengths == "no" or self.ragged != "no"):
            raise BadParamError.at("sdpa.page", expected="0 without lengths, and beside ragged", got=self.page)
        return builder.tensor((self.b, 1, 1, 1), DataType.INT32, name="lengths") if self.lengths != "no" else None

    def _keys(self, builder: CaseBuilder, dims: tuple[int, ...], name: str, lengths: Tensor | None) -> Tensor:
        """k or v of ``dims``: itself, or loaded from pages."""
        if not self.page or lengths is None:
            return self._heads(builder, dims, name)
        container = self._heads(builder, pages.container_dims(dims, self.page), name)
        return pages.load(builder, container, lengths, dims[2])

    def _transposed(self, builder: CaseBuilder, k: Tensor) -> Tensor:
        """k with its last two dimensions exchanged: the same memory, or by an operation where it is loaded."""
        if k.is_virtual:
            return builder.transpose(k, _EXCHANGED)
        dims, strides = (tuple(values[axis] for axis in _EXCHANGED) for values in (k.dims, k.strides))
        return replace(k, dims=dims, strides=strides)

    def _sink(self, builder: CaseBuilder, existing: Tensor | None) -> Tensor | None:
        if self.sink == "no":
            return None
        sink = builder.tensor((1, self.h, 1, 1), DataType.FLOAT, name="sink")
        if self.sink == "all" or existing is None:
            return sink
        row = _index(builder, sink, 2, dims=(1, self.h, self.q, 1))
        return _select(builder, sink, PointwiseMode.CMP_LT, row, existing)

    def _masked(self, builder: CaseBuilder, scores: Tensor, existing: Tensor | None, lengths: Tensor | None) -> Tensor:
        """Scores, with minus infinity where a query does not attend to a key. existing: number of queries of each
        batch."""
        if existing is not None:
            scores = _select(builder, scores, PointwiseMode.CMP_LT, _index(builder, scores, 2), existing)
        shift = self._kv - self.q if self.causal == "bottom_right" else 0
        right = [bound for bound in (self.right, *([0] if self.causal != "no" else [])) if bound >= 0]
        if right:
            row, column = _index(builder, scores, 2, shift + min(right)), _index(builder, scores, 3)
            scores = _select(builder, scores, PointwiseMode.CMP_GE, row, column)
        if self.left >= 0:
            row, column = _index(builder, scores, 2, shift - self.left), _index(builder, scores, 3)
            scores = _select(builder, scores, PointwiseMode.CMP_LE, row, column)
        if self.blocks == "yes":
            mask = builder.tensor(mask_dims(scores.dims), DataType.UINT8, name="blocks")
            scores = builder.block_mask(scores, mask)
        if lengths is not None:
            scores = _select(builder, scores, PointwiseMode.CMP_LT, _index(builder, scores, 3), lengths)
        return scores

    def _values(self, rng: np.random.Generator, tensor: Tensor, exact: bool) -> NDArray[Any]:
        if tensor.name == "lengths":
            return rng.integers(0, self._kv + 1, tensor.dims).astype(np.int32)
        if tensor.name == "queries":
            return rng.integers(0, self.q + 1, tensor.dims)
        if tensor.name == "blocks":
            return rng.integers(0, 256, tensor.dims).astype(np.uint8)
        if tensor.name in _SCALES:
            return rng.uniform(*_SCALES[tensor.name], tensor.dims).astype(np.float32)
        if pages.is_table(tensor):
            return pages.table_values(rng, tensor)
        if packed.is_offsets(tensor):
            longest = self._kv if tensor.name[0] in "kv" else self.q
            return packed.offset_values(rng, tensor, longest, is_even=self.ragged == "even")
        return super()._values(rng, tensor, exact)


def _index(
    builder: CaseBuilder, scores: Tensor, axis: int, offset: int = 0, dims: tuple[int, ...] | None = None
) -> Tensor:
    index = builder.pointwise(Pointwise(PointwiseMode.GEN_INDEX, DataType.INT32, axis=axis), scores, dims=dims)
    if not offset:
        return index
    constant = builder.constant(4, DataType.INT32, offset)
    return builder.pointwise(PointwiseMode.ADD, index, constant, compute_type=DataType.INT32)


def _select(builder: CaseBuilder, scores: Tensor, mode: PointwiseMode, x: Tensor, b: Tensor) -> Tensor:
    """Keeps scores where ``x mode b`` is true (``mode`` is a comparison); elsewhere minus infinity."""
    nothing = builder.constant(4, DataType.FLOAT, -inf)
    seen = builder.pointwise(mode, x, b, compute_type=DataType.INT32, virtual=DataType.BOOLEAN)
    return builder.pointwise(PointwiseMode.BINARY_SELECT, scores, nothing, seen)


def _scaled(builder: CaseBuilder, x: Tensor, *names: str, store: DataType | None = None) -> Tensor:
    """Multiplies x by one new scalar tensor for each name; the products are stored in the data type ``store`` if that
    is given."""
    numbers = [builder.tensor((1, 1, 1, 1), DataType.FLOAT, name=name) for name in names]
    for number in numbers:
        x = builder.pointwise(PointwiseMode.MUL, x, number, store=store)
    return x


def _largest(builder: CaseBuilder, x: Tensor) -> None:
    """Adds a reduction that stores the largest magnitude of x."""
    builder.reduction(ReduceTensorOp.AMAX, x, (0, 1, 2, 3), store=DataType.FLOAT)
