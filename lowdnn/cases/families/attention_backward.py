"""The gradients of attention, one operation.

sdpa_bwd b=2 h=8 hk=2 q=100 kv=120 d=64 right=0 place=bottom_right dtype=bf16
sdpa_bwd b=2 h=4 q=100 d=64 dv=128 left=32 right=0 lengths=both layout=bshd scale=host
sdpa_bwd b=2 h=4 q=100 d=64 right=0 bias=1h cap=30 dropout=0.1
sdpa_bwd b=2 h=4 q=100 d=64 right=0 dtype=e4m3 d_o=e5m2 out=bf16
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.cases import packed, text
from lowdnn.cases.base import Case, Inputs
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.families.attention import ORDERS
from lowdnn.cases.text import key
from lowdnn.enums import DataType, PointwiseMode, RngDistribution
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import inputs_of
from lowdnn.ops.pointwise import Pointwise
from lowdnn.ops.ragged import RaggedLoad
from lowdnn.ops.rng import Rng
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.sdpa_fp8_backward import LARGEST, NUMBERS
from lowdnn.ops.subgraph import Subgraph
from lowdnn.ops.tensor import Tensor, packed_strides

#: Between which values the numbers beside fp8 lie: outputs, weights, gradients of scores and results of a few units,
#: weights up to 1, fill the range of e4m3.
_NUMBERS = {
    **{f"descale_{port}": (0.5, 1.5) for port in ("q", "k", "v", "d_o")},
    "descale_o": (1 / 32, 1 / 8),
    "scale_s": (200.0, 400.0),
    "descale_s": (1 / 400, 1 / 200),
    "scale_dp": (2.0, 8.0),
    "descale_dp": (1 / 8, 1 / 2),
    **{f"scale_{port}": (4.0, 16.0) for port in ("dq", "dk", "dv")},
}
#: Scales that are not 1 in benchmarks.
_EVEN_NUMBERS = {"scale_s": 256.0, "descale_s": 1 / 256, "scale_dp": 1024.0, "descale_dp": 1 / 1024}
#: Names of the tensors that the operation's sub-graphs receive.
_GIVEN = ("scores", "gradient", "weights")


@dataclass(frozen=True)
class AttentionBackwardCase(Case):
    """dq, dk, dv of o = softmax(q k^T / sqrt(d)) v for q (b, h, q, d), k (b, hk, kv, d), v (b, hv, kv, dv).

    hk, hv, kv, dv: by default as h, hk, q, d.  left, right: how far a query sees from its place, -1 without bound;
    place: whether that is counted from the first or the last query and key.  lengths: whether each batch has lengths of
    its own, of keys or queries.  scale: where 1 / sqrt(d) is: in the graph, in host or device memory, or nowhere.
    deterministic: whether the same inputs must give the same bits.
    bias: batches (b or 1) and heads (h or 1) of the bias of the scores; its gradient is stored.  cap: the bound of the
    scores' size by a tanh; 0 for none.  alibi: whether (key - query) / (head + 1) is added then.
    dropout: the chance of a weight to be dropped.  masked: whether a tensor says which are, instead of random numbers.
    ragged: whether sequences are packed, in all tensors of heads and the statistics, of the same lengths each; see
    ``sdpa``.
    centre: one letter for each number that sums of d_o * o are multiplied by: h in host, d in device memory.
    dq: the type of dq alone.
    dtype: with fp8, numbers scale all tensors and rounded intermediate values, and the largest magnitudes of all
    gradients are stored.  d_o: the type of the output's gradient then, and of the results without ``out``.
    """

    family: ClassVar[str] = "sdpa_bwd"

    b: int = key(text.integer(0))
    h: int = key(text.integer(0))
    q: int = key(text.integer(0))
    d: int = key(text.integer(0))
    hk: int = key(text.integer(0), 0)
    hv: int = key(text.integer(0), 0)
    kv: int = key(text.integer(0), 0)
    dv: int = key(text.integer(0), 0)
    left: int = key(text.integer(-1), -1)
    right: int = key(text.integer(-1), -1)
    place: str = key(text.choice("top_left", "bottom_right"), "top_left")
    lengths: str = key(text.choice("no", "kv", "both"), "no")
    index: DataType = key(text.data_type(), DataType.INT32)
    scale: str = key(text.choice("constant", "host", "device", "none"), "constant")
    deterministic: str = key(text.choice("no", "yes"), "no")
    bias: str = key(text.choice("no", "bh", "1h", "b1", "11"), "no")
    cap: float = key(text.number(), 0.0)
    alibi: str = key(text.choice("no", "yes"), "no")
    dropout: float = key(text.share(), 0.0)
    masked: str = key(text.choice("no", "yes"), "no")
    ragged: str = key(text.choice("no", "yes", "even"), "no")
    layout: str = key(text.choice(*ORDERS), "bhsd")
    dtype: DataType = key(text.data_type(), DataType.BFLOAT16)
    d_o: DataType | None = key(text.data_type(), None)
    out: DataType | None = key(text.data_type(), None)
    dq: DataType | None = key(text.data_type(), None)
    centre: str = key(text.choice("no", "h", "d", "hd"), "no")
    align: int = key(text.integer(1), 16)

    def graph(self) -> OperationGraph:
        builder = CaseBuilder(alignment_bytes=self.align)
        keys, size_v = self.kv or self.q, self.dv or self.d
        heads_k = self.hk or self.h
        dims = {
            "q": (self.b, self.h, self.q, self.d),
            "k": (self.b, heads_k, keys, self.d),
            "v": (self.b, self.hv or heads_k, keys, size_v),
            "o": (self.b, self.h, self.q, size_v),
            "d_o": (self.b, self.h, self.q, size_v),
        }
        q, k, v, o, d_o = (self._heads(builder, extents, name) for name, extents in dims.items())
        stats = self._stats(builder)
        bias = self._bias(builder, "bias")
        options: dict[str, Any] = {
            "scale": self._scale(builder),
            "seq_len_q": self._lengths(builder, "seq_len_q") if self.lengths == "both" else None,
            "seq_len_kv": self._lengths(builder, "seq_len_kv") if self.lengths != "no" else None,
            "left": None if self.left < 0 else self.left,
            "right": None if self.right < 0 else self.right,
            "is_bottom_right": self.place == "bottom_right",
            "is_deterministic": self.deterministic == "yes",
            "store": self.out,
            "inner": self._inner(builder, bias),
        }
        if self.is_fp8:
            numbers = tuple(builder.tensor((1, 1, 1, 1), DataType.FLOAT, name=name) for name in NUMBERS)
            builder.sdpa_fp8_backward(q, k, v, o, d_o, stats, numbers, **options)
        else:
            options |= {"store_dq": self.dq, "centre_scales": self._centre_scales(builder)}
            builder.sdpa_backward(q, k, v, o, d_o, stats, dbias=self._bias(builder, "dbias"), **options)
        padded = ("dbias", *(f"amax_{port}" for port in LARGEST))
        return builder.graph() if self.ragged == "no" else packed.with_packed_outputs(builder, padded)

    def inputs(self, seed: int, exact: bool) -> Inputs:
        """Input data, in which o and stats are computed from the other inputs."""
        drawn, graph = super().inputs(seed, exact), self.graph()
        given = {tensor.name: tensor for tensor in graph.inputs if packed.is_offsets(tensor)}
        for name, tensor in given.items():
            shared = drawn[given["k_ragged_offset" if _is_of_keys(name) else "q_ragged_offset"].uid]
            drawn |= {tensor.uid: dtypes.from_float64(shared, tensor.data_type)}
        return self.with_results(drawn)

    def with_results(self, inputs: Inputs) -> Inputs:
        """``inputs`` with o and stats computed from the other inputs."""
        drawn, graph = dict(inputs), self.graph()
        operation = next(op for op in graph.operations if isinstance(op, SdpaBackward))
        loads = {op.y.uid: op for op in graph.operations if isinstance(op, RaggedLoad)}
        values: dict[int, NDArray[Any]] = {
            tensor.uid: dtypes.to_values(drawn[tensor.uid], tensor.data_type)
            if tensor.constant_value is None
            else np.full(tensor.dims, tensor.constant_value)
            for tensor in graph.inputs
        }
        for uid, load in loads.items():
            values |= {uid: load.reference({port: values[t.uid] for port, t in inputs_of(load).items()})["y"]}
        ports = inputs_of(operation)
        results = operation.forward({port: values[tensor.uid] for port, tensor in ports.items()})
        for port, array in results.items():
            tensor = ports[port]
            if tensor.uid in loads:
                tensor, array = _packed(loads[tensor.uid], values, array)
            drawn |= {tensor.uid: dtypes.from_float64(array, tensor.data_type)}
        return drawn

    def routing(self, seed: int) -> Inputs:
        """The scales of fp8 for benchmarks: powers of two whose products are 1."""
        numbers = [tensor for tensor in self.graph().inputs if tensor.name in _NUMBERS]
        return {tensor.uid: np.full(tensor.dims, _EVEN_NUMBERS.get(tensor.name, 1.0), np.float32) for tensor in numbers}

    @property
    def length(self) -> int:
        """Terms of the longest sums, those of dk and dv."""
        return max(self.kv or self.q, self.q * max(1, self.h // max(1, self.hv or self.hk or self.h)))

    @property
    def is_exact(self) -> bool:
        return False

    @property
    def is_fp8(self) -> bool:
        return self.dtype in dtypes.FP8_TYPES

    @property
    def _factor(self) -> float:
        return float(max(self.d, 1) ** -0.5)

    def _heads(self, builder: CaseBuilder, dims: tuple[int, ...], name: str) -> Tensor:
        return self._rows(builder, dims, (self.d_o if name == "d_o" else None) or self.dtype, name)

    def _rows(self, builder: CaseBuilder, dims: tuple[int, ...], data_type: DataType, name: str) -> Tensor:
        if self.ragged != "no":
            return packed.load(builder, dims, data_type, name)
        return builder.tensor(dims, data_type, strides=packed_strides(dims, ORDERS[self.layout]), name=name)

    def _lengths(self, builder: CaseBuilder, name: str) -> Tensor:
        return builder.tensor((self.b, 1, 1, 1), self.index, name=name)

    def _stats(self, builder: CaseBuilder) -> Tensor:
        """The statistics' tensor, packed in the order (b, h, q) for any layout of the heads, as FlashAttention expects;
        ragged if the heads are."""
        dims = (self.b, self.h, self.q, 1)
        if self.ragged != "no":
            return self._rows(builder, dims, DataType.FLOAT, "stats")
        return builder.tensor(dims, DataType.FLOAT, name="stats")

    def _bias(self, builder: CaseBuilder, name: str) -> Tensor | None:
        """The bias or its gradient."""
        if self.bias == "no":
            return None
        batch, heads = (
            1 if letter == "1" else extent for letter, extent in zip(self.bias, (self.b, self.h), strict=True)
        )
        return builder.tensor((batch, heads, self.q, self.kv or self.q), self.dtype, name=name)

    def _inner(self, builder: CaseBuilder, bias: Tensor | None) -> Subgraph | None:
        """Adds the sub-graphs of the scores, of their gradients and of the weights."""
        if bias is None and not self.cap and self.alibi == "no" and not self.dropout:
            return None
        dims = (self.b, self.h, self.q, self.kv or self.q)
        scores, gradient, weights = (
            builder.tensor(dims, DataType.FLOAT, is_virtual=True, name=name) for name in _GIVEN
        )
        biased = scores if bias is None else builder.pointwise(PointwiseMode.ADD, scores, bias)
        capped, d_scores = self._capped(builder, biased, gradient)
        modified = capped if self.alibi == "no" else _with_alibi(builder, capped)
        dropped = weights if not self.dropout else self._dropped(builder, weights)
        return Subgraph((scores, gradient, weights), (modified, d_scores, dropped))

    def _capped(self, builder: CaseBuilder, scores: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """(cap * tanh(scores / cap), the gradient of scores)."""
        if not self.cap:
            return scores, gradient
        cap = builder.constant(4, DataType.FLOAT, self.cap, name="cap")
        shares = builder.pointwise(PointwiseMode.DIV, scores, cap)
        capped = builder.pointwise(PointwiseMode.MUL, builder.pointwise(PointwiseMode.TANH_FWD, shares), cap)
        return capped, builder.pointwise(PointwiseMode.TANH_BWD, gradient, shares)

    def _dropped(self, builder: CaseBuilder, weights: Tensor) -> Tensor:
        if self.masked == "yes":
            kept = builder.tensor(weights.dims, self.dtype, name="kept")
        else:
            seed, offset = (builder.tensor((1, 1, 1, 1), DataType.INT64, name=name) for name in ("seed", "offset"))
            bernoulli = Rng(RngDistribution.BERNOULLI, probability=1 - self.dropout)
            kept = builder.rng(bernoulli, weights.dims, seed=seed, offset=offset)
        return builder.pointwise(PointwiseMode.MUL, weights, kept, alpha1=1 / (1 - self.dropout))

    def _scale(self, builder: CaseBuilder) -> Tensor | None:
        match self.scale:
            case "constant":
                return builder.constant(4, DataType.FLOAT, self._factor, name="scale")
            case "host":
                return builder.by_value(4, DataType.FLOAT, name="scale")
            case "device":
                return builder.tensor((1, 1, 1, 1), DataType.FLOAT, name="scale")
        return None

    def _centre_scales(self, builder: CaseBuilder) -> tuple[Tensor, ...]:
        """Numbers, which are drawn around 1."""
        if self.centre == "no":
            return ()
        return tuple(
            builder.by_value(4, DataType.FLOAT, name="centre_scale")
            if where == "h"
            else builder.tensor((1, 1, 1, 1), DataType.FLOAT, name="centre_scale")
            for where in self.centre
        )

    def _values(self, rng: np.random.Generator, tensor: Tensor, exact: bool) -> NDArray[Any]:
        extents = {"seq_len_q": self.q, "seq_len_kv": self.kv or self.q}
        if tensor.name in extents:
            return dtypes.from_float64(rng.integers(0, extents[tensor.name] + 1, tensor.dims), tensor.data_type)
        if tensor.name == "centre_scale":
            return rng.uniform(0.5, 1.5, tensor.dims).astype(np.float32)
        if tensor.name == "scale":
            return dtypes.from_float64(np.full(tensor.dims, self._factor), tensor.data_type)
        if tensor.name in _NUMBERS:
            return rng.uniform(*_NUMBERS[tensor.name], tensor.dims).astype(np.float32)
        if tensor.name == "kept":
            return dtypes.from_float64(rng.random(tensor.dims) >= self.dropout, tensor.data_type)
        if packed.is_offsets(tensor):
            longest = (self.kv or self.q) if _is_of_keys(tensor.name) else self.q
            return packed.offset_values(rng, tensor, longest, is_even=self.ragged == "even")
        if tensor.name in ("seed", "offset"):
            return rng.integers(0, 2**62, tensor.dims)
        return super()._values(rng, tensor, exact)


def _is_of_keys(name: str) -> bool:
    """Whether the rows of the tensor of this name belong to keys; otherwise they belong to queries."""
    return name.removeprefix("d")[0] in "kv"


def _packed(load: RaggedLoad, values: Mapping[int, NDArray[Any]], padded: NDArray[Any]) -> tuple[Tensor, NDArray[Any]]:
    """The packed tensor that ``load`` reads, and its values in memory for the result ``padded``."""
    rows = np.zeros(load.x.dims)
    for batch, (count, place) in enumerate(load.sequences({"offsets": values[load.offsets.uid]})):
        rows[0, :, place] = padded[batch, :, :count]
    return load.x, rows


def _with_alibi(builder: CaseBuilder, scores: Tensor) -> Tensor:
    """Adds (key - query) / (head + 1) to the scores."""
    head, query, key = (
        builder.pointwise(Pointwise(PointwiseMode.GEN_INDEX, DataType.FLOAT, axis=axis), scores) for axis in (1, 2, 3)
    )
    one = builder.constant(4, DataType.FLOAT, 1.0)
    slope = builder.pointwise(PointwiseMode.RECIPROCAL, builder.pointwise(PointwiseMode.ADD, head, one))
    distance = builder.pointwise(PointwiseMode.SUB, key, query)
    return builder.pointwise(PointwiseMode.ADD, scores, builder.pointwise(PointwiseMode.MUL, slope, distance))
