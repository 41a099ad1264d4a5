"""The gradients of scaled dot product attention, o = (F * P) v with P = exp(modified(S) - stats), S = scale * q k^T:

    D = sum over the last axis of d_o * o        dP = F * (d_o v^T)        dS = derivative(P * (dP - D))
    dv = (F * P)^T d_o        dk = scale * dS^T q        dq = scale * dS k        dbias = dS

``inner`` are the operations of ``modified`` and ``derivative``, and products with F (dropout), on virtual tensors (B,
H, S_q, S_kv): made of S, of the gradient of modified(S) and of P, which it is given in this order. The operations of
``derivative`` may read S. Without it F is 1 and both change nothing. dbias, (B, H, S_q, S_kv) with 1 for B or H where
it is summed, is the gradient of what ``modified`` adds to S before anything else. q is (B, H, S_q, D), k (B, H_k, S_kv,
D), v (B, H_v, S_kv, D_v), o and d_o are (B, H, S_q, D_v); stats (B, H, S_q, 1) is the natural logarithm of the sum of a
row's exponentials. H is a multiple of H_k and of H_v: neighbouring heads of q share one of k and one of v, whose
gradients are sums over them. scale is one number, 1 where there is none.

P is 0 outside of a band: with shift = 0, or with ``is_bottom_right`` keys - queries,

    query r sees key c    where r + shift - left <= c <= r + shift + right,    r < queries    and    c < keys

where a bound that is None does not count, and queries and keys are S_q and S_kv, or what seq_len_q and seq_len_kv,
(B, 1, 1, 1), say of each batch. Rows past those lengths are not read, and their gradients are 0. P is 0 too in rows
whose stats are minus infinity. Rows of d_o that are 0 add nothing: those that packed sequences lack have stats 0, and
P may be infinite there. ``is_deterministic``: the same inputs give the same bits in every run.
Sources: cudnn_graph.h, CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR (``sdpa_gradients`` declares it whole), which has no
attribute for the band nor for determinism; Dao, "FlashAttention-2", section 2.2, for the formulas.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import AttributeName, DataType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.norm import check_dims, check_float
from lowdnn.ops.sdpa import Lengths, check_heads, check_lengths
from lowdnn.ops.subgraph import Subgraph, are_products
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import inner_operations, tensor_input, tensor_output
from lowdnn.status import BadParamError, NotSupportedError, ShapeMismatchError, UnsupportedDataTypeError

_WHERE = "sdpa_backward"
#: Error of a sum of 256 products in tensor cores, which may cut off an fp32's last bit at each of 16 steps. Roundings
#: of an fp32 at each of 256 steps come to as much.
_CUT_OFF = 2.0**-19
Array = NDArray[Any]


@dataclass(frozen=True)
class SdpaBackward:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType | None] = DescriptorType.OPERATION_SDPA_BWD
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.CONTRACTION

    q: Tensor = tensor_input(AttributeName.OPERATION_SDPA_BWD_QDESC)
    k: Tensor = tensor_input(AttributeName.OPERATION_SDPA_BWD_KDESC)
    v: Tensor = tensor_input(AttributeName.OPERATION_SDPA_BWD_VDESC)
    o: Tensor = tensor_input(AttributeName.OPERATION_SDPA_BWD_ODESC)
    d_o: Tensor = tensor_input(AttributeName.OPERATION_SDPA_BWD_DODDESC)
    stats: Tensor = tensor_input(AttributeName.OPERATION_SDPA_BWD_STATSDESC)
    dq: Tensor = tensor_output(AttributeName.OPERATION_SDPA_BWD_DQDESC)
    dk: Tensor = tensor_output(AttributeName.OPERATION_SDPA_BWD_DKDESC)
    dv: Tensor = tensor_output(AttributeName.OPERATION_SDPA_BWD_DVDESC)
    scale: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_BWD_SCALEDESC, default=None)
    seq_len_q: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_BWD_SEQ_LEN_QDESC, default=None)
    seq_len_kv: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_BWD_SEQ_LEN_KVDESC, default=None)
    dbias: Tensor | None = tensor_output(AttributeName.OPERATION_SDPA_BWD_DBIAS_DESC, default=None)
    inner: Subgraph | None = inner_operations(AttributeName.OPERATION_SDPA_BWD_SUBGRAPH, default=None)
    left: int | None = None
    right: int | None = None
    is_bottom_right: bool = False
    is_deterministic: bool = False

    def __post_init__(self) -> None:
        check_heads(_WHERE, self.q, self.k, self.v)
        self._check_others()
        self._check_inner()

    @property
    def scores_dims(self) -> tuple[int, ...]:
        return (*self.q.dims[:3], self.k.dims[2])

    @property
    def compute_type(self) -> DataType:
        return DataType.FLOAT

    @property
    def flops(self) -> int:
        """Floating-point operations of the five products, whatever the band."""
        batch, heads, queries, size = self.q.dims
        return 2 * batch * heads * queries * self.k.dims[2] * (3 * size + 2 * self.v.dims[3])

    def without(self, ports: Collection[str]) -> SdpaBackward:
        """The operation without dbias."""
        return replace(self, dbias=None) if "dbias" in ports else self

    def reference(self, inputs: Values) -> dict[str, Array]:
        return self._gradients(inputs, rounds=False)

    def rounded_reference(self, inputs: Values) -> dict[str, Array]:
        """P and dS, operands of products, are rounded to the type of q; S and dP are scaled by 1 - _CUT_OFF."""
        return self._gradients(inputs, rounds=True)

    def forward(self, inputs: Values) -> dict[str, Array]:
        """The ``o`` and ``stats`` that belong to the other inputs: 0 and minus infinity where a query sees no key."""
        row_exists, key_exists = self._existing(inputs)
        q = np.where(row_exists, inputs["q"], 0)
        k, v = (self._repeated(np.where(key_exists, inputs[port], 0)) for port in ("k", "v"))
        with np.errstate(all="ignore"):
            modified = self._modified(inputs, self._scale(inputs) * (q @ _transposed(k)))
            scores = np.where(self._band(inputs), modified, -np.inf)
            largest = scores.max(-1, keepdims=True, initial=-np.inf)
            weights = np.exp(scores - np.where(largest == -np.inf, 0, largest))
            total = weights.sum(-1, keepdims=True)
            stats = np.where(total == 0, -np.inf, largest + np.log(total))
            return {"o": self._factors(inputs) * weights @ v / np.where(total == 0, 1, total), "stats": stats}

    def _check_others(self) -> None:
        rows = self.q.dims[:3]
        check_dims(_WHERE, (*rows, self.v.dims[3]), {"o": self.o, "d_o": self.d_o})
        check_dims(_WHERE, (*rows, 1), {"stats": self.stats})
        for port, own in {"dq": self.q, "dk": self.k, "dv": self.v}.items():
            check_dims(_WHERE, own.dims, {port: getattr(self, port)})
        ports = ("q", "k", "v", "o", "d_o", "dq", "dk", "dv")
        check_float(_WHERE, {port: getattr(self, port) for port in ports})
        if self.stats.data_type is not DataType.FLOAT:
            got = self.stats.data_type.name
            raise UnsupportedDataTypeError.at(f"{_WHERE}.stats.data_type", expected="FLOAT", got=got)
        if self.scale is not None:
            check_float(_WHERE, {"scale": self.scale})
            if self.scale.element_count != 1:
                raise BadParamError.at(f"{_WHERE}.scale.dims", expected="one element", got=list(self.scale.dims))
        check_lengths(_WHERE, self.q.dims[0], Lengths(self.seq_len_q, self.seq_len_kv))

    def _check_inner(self) -> None:
        full = self.scores_dims
        if self.dbias is not None:
            check_float(_WHERE, {"dbias": self.dbias})
            allowed = [*([extent, 1] for extent in full[:2]), *([extent] for extent in full[2:])]
            got = self.dbias.dims
            if len(got) != 4 or any(extent not in extents for extent, extents in zip(got, allowed, strict=True)):
                expected = f"{list(full)}, with 1 for batch or heads where it repeats"
                raise ShapeMismatchError.at(f"{_WHERE}.dbias.dims", expected=expected, got=list(got))
        inner = self.inner
        if inner is None:
            return
        if not isinstance(inner, Subgraph):
            got_type = type(inner).__name__
            raise NotSupportedError.at(f"{_WHERE}.inner", expected="operations between given tensors", got=got_type)
        if (len(inner.given), len(inner.made)) != (3, 3):
            got = len(inner.given), len(inner.made)
            raise BadParamError.at(f"{_WHERE}.inner", expected="3 tensors that are given, and 3 made", got=got)
        check_dims(_WHERE, full, {f"inner.{tensor.label}": tensor for tensor in (*inner.given, *inner.made)})
        if not are_products(inner.given[2], inner.operations):
            expected = "products of the weights with other tensors"
            raise NotSupportedError.at(f"{_WHERE}.inner", expected=expected, got="another operation")

    def _gradients(self, inputs: Values, *, rounds: bool) -> dict[str, Array]:
        """The gradients by port.

        rounds: whether the factors times P, and dS, are rounded to q's type for the products, values of ``inner`` are
        rounded, and the sums q k^T and do v^T are cut off; dbias takes dS unrounded.
        """
        weights, exact = self._score_gradients(inputs, rounds=rounds)
        ds = exact
        if rounds:
            weights, ds = (dtypes.rounded(values, self.q.data_type) for values in (weights, exact))
        gradients = self._products(inputs, weights, self._scale(inputs) * ds)
        if self.dbias is not None:
            summed = tuple(axis for axis, extent in enumerate(self.dbias.dims) if extent != exact.shape[axis])
            gradients["dbias"] = exact.sum(summed, keepdims=True)
        return gradients

    def _score_gradients(self, inputs: Values, *, rounds: bool) -> tuple[Array, Array]:
        """(F * P, dS), neither rounded.  rounds: whether values of ``inner`` are rounded, and sums of products cut off
        as on tensor cores."""
        q, k, v, _, d_o = self._operands(inputs)
        stats, scale, factors = inputs["stats"], self._scale(inputs), self._factors(inputs, rounds=rounds)
        with np.errstate(all="ignore"):
            is_seen = self._band(inputs) & (stats != -np.inf) & d_o.any(-1, keepdims=True)
            kept = 1 - _CUT_OFF if rounds else 1.0
            scores = scale * kept * (q @ _transposed(k))
            p = np.where(is_seen, np.exp(self._modified(inputs, scores, rounds=rounds) - stats), 0)
            centred = factors * kept * (d_o @ _transposed(v)) - self._centres(inputs)
            d_modified = np.where(is_seen, p * centred, 0)
            return factors * p, np.where(is_seen, self._derived(inputs, scores, d_modified, rounds=rounds), 0)

    def _centres(self, inputs: Values) -> Array:
        """D."""
        _, _, _, o, d_o = self._operands(inputs)
        centres: Array = (d_o * o).sum(-1, keepdims=True)
        return centres

    def _products(self, inputs: Values, weights: Array, d_products: Array) -> dict[str, Array]:
        """dq, dk, dv, of weights and of the gradient of q k^T."""
        q, k, _, _, d_o = self._operands(inputs)
        with np.errstate(all="ignore"):
            return {
                "dq": d_products @ k,
                "dk": self._shared(_transposed(d_products) @ q, self.k.dims[1]),
                "dv": self._shared(_transposed(weights) @ d_o, self.v.dims[1]),
            }

    def _operands(self, inputs: Values) -> tuple[Array, Array, Array, Array, Array]:
        """q, k, v, o, d_o with zeros past the lengths; k and v are repeated for the heads of q that share a head."""
        row_exists, key_exists = self._existing(inputs)
        q, o, d_o = (np.where(row_exists, inputs[port], 0) for port in ("q", "o", "d_o"))
        k, v = (self._repeated(np.where(key_exists, inputs[port], 0)) for port in ("k", "v"))
        return q, k, v, o, d_o

    def _modified(self, inputs: Values, scores: Array, *, rounds: bool = False) -> Array:
        return self._made(inputs, 0, {0: scores}, rounds)

    def _derived(self, inputs: Values, scores: Array, d_modified: Array, *, rounds: bool) -> Array:
        return self._made(inputs, 1, {0: scores, 1: d_modified}, rounds)

    def _factors(self, inputs: Values, *, rounds: bool = False) -> Array:
        """The factors F of the weights."""
        return self._made(inputs, 2, {2: np.ones(self.scores_dims)}, rounds)

    def _made(self, inputs: Values, place: int, given: dict[int, Array], rounds: bool) -> Array:
        """The tensor that ``inner`` makes at ``place``; without ``inner`` the given one there.

        given: values, by place, of the tensors that ``inner`` is given.
        """
        if self.inner is None:
            return given[place]
        operands = {tensor.uid: inputs[f"inner[{number}]"] for number, tensor in enumerate(self.inner.operands)}
        known = {self.inner.given[number].uid: values for number, values in given.items()}
        return self.inner.evaluated(self.inner.made[place], operands | known, rounds=rounds)

    def _scale(self, inputs: Values) -> float:
        return float(inputs["scale"].reshape(())) if "scale" in inputs else 1.0

    def _lengths(self, inputs: Values) -> tuple[Array, Array]:
        """Queries and keys of each batch, (B, 1, 1, 1)."""
        queries, keys = (
            np.clip(inputs[port], 0, extent) if port in inputs else np.full((self.q.dims[0], 1, 1, 1), extent)
            for port, extent in (("seq_len_q", self.q.dims[2]), ("seq_len_kv", self.k.dims[2]))
        )
        return queries, keys

    def _existing(self, inputs: Values) -> tuple[Array, Array]:
        """Which rows of q and of k are within the lengths, (B, 1, S, 1)."""
        queries, keys = self._lengths(inputs)
        return _rows(self.q) < queries, _rows(self.k) < keys

    def _band(self, inputs: Values) -> Array:
        """Which queries see which keys, (B, 1, S_q, S_kv)."""
        queries, keys = self._lengths(inputs)
        row, key = _rows(self.q), _transposed(_rows(self.k))
        is_seen = (row < queries) & (key < keys)
        place = row + (keys - queries if self.is_bottom_right else 0)
        if self.left is not None:
            is_seen &= key >= place - self.left
        if self.right is not None:
            is_seen &= key <= place + self.right
        return is_seen

    def _repeated(self, values: Array) -> Array:
        """Values of shared heads, repeated for each of q's heads."""
        return np.repeat(values, self.q.dims[1] // values.shape[1], axis=1)

    def _shared(self, values: Array, heads: int) -> Array:
        """Sums over the heads of q that share one of ``heads``."""
        batch, own, *rest = values.shape
        summed: Array = values.reshape(batch, heads, own // heads, *rest).sum(2)
        return summed


def _transposed(values: Array) -> Array:
    return np.swapaxes(values, -1, -2)


def _rows(tensor: Tensor) -> Array:
    return np.arange(tensor.dims[2]).reshape(1, 1, -1, 1)
