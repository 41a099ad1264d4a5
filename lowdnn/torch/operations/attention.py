"""Scaled dot product attention and its gradients: the entries of flash, memory-efficient and cuDNN attention on a GPU,
and of flash attention on the CPU.

    o = softmax(scale * q k^T + bias) v        logsumexp of each query's scores

They compute the same and return their statistics, and random states that nothing reads without dropout, in forms of
their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch

from lowdnn.frontend.data_types import data_type
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.python_graph import pygraph
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.tensor import packed_strides
from lowdnn.torch.operation import Arguments, Constant, Overload, Result, optional
from lowdnn.torch.sketch import MAX_ALIGNMENT, Declined, Dims, Sketch, name_of

_Q, _K, _V, _BIAS, _O, _STATS, _DO = range(7)
_NARROW = (torch.float16, torch.bfloat16)
#: The memory-efficient kernels have statistics for a multiple of so many queries.
_EFFICIENT_ROWS = 32


@dataclass(frozen=True)
class Rows:
    """Packed sequences.  offsets: the first row of each, and the end of the last.  row_elements: from row to row."""

    offsets: Tensor
    row_elements: int


@dataclass(frozen=True)
class Form:
    """The results of one entry beside o and the gradients.

    stats_strides: the log-sum-exp's, from (batch, heads, queries).  stats_rows: its extent for so many queries.
    rest: the results behind it.  is_like: whether o and gradients have the strides of q, k and v; otherwise they are
    stored by rows of all heads.  has_last_axis: whether the log-sum-exp has a last axis of extent 1.
    has_rows_first: whether q, k, v, o and gradients are (batch, rows, heads, size), not (batch, heads, rows, size).
    """

    stats_strides: Callable[[Dims], Dims]
    stats_rows: Callable[[int], int]
    rest: Callable[[Sketch], tuple[Any, ...]]
    is_like: bool
    has_last_axis: bool = False
    has_rows_first: bool = False

    @property
    def axes(self) -> Dims:
        """Where batch, heads, rows and size are among the axes of q, k and v."""
        return (0, 2, 1, 3) if self.has_rows_first else (0, 1, 2, 3)

    def extents(self, tensor: Any) -> Dims:
        """[batch, heads, rows, size]"""
        return tuple(tensor.shape[axis] for axis in self.axes)

    def layout(self, sketch: Sketch, place: int) -> tuple[Dims, Dims]:
        """Dims and strides in graphs of what lies at a place."""
        shape, strides = sketch.shape_at(place), sketch.strides_at(place)
        return tuple(shape[axis] for axis in self.axes), tuple(strides[axis] for axis in self.axes)


def read_flash(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *,
    scale: float | None = None,
) -> Arguments:  # fmt: skip
    return (q, k, v, optional(None)), (dropout_p, is_causal, scale, True, return_debug_mask)


def read_efficient(
    q: Any, k: Any, v: Any, bias: Any, compute_log_sumexp: bool, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> Arguments:  # fmt: skip
    """Also cuDNN's entry, which may return a mask."""
    return (q, k, v, optional(bias)), (dropout_p, is_causal, scale, compute_log_sumexp, return_debug_mask)


def read_cpu(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False, *, attn_mask: Any = None,
    scale: float | None = None,
) -> Arguments:  # fmt: skip
    return (q, k, v, optional(attn_mask)), (dropout_p, is_causal, scale, True, False)


def read_flash_backward(
    do: Any, q: Any, k: Any, v: Any, o: Any, stats: Any, cum_q: Any, cum_k: Any, max_q: int, max_k: int,
    dropout_p: float, is_causal: bool, seed: Any, offset: Any, *, scale: float | None = None,
) -> Arguments:  # fmt: skip
    return (q, k, v, optional(None), o, stats, do), (dropout_p, is_causal, scale, (True, True, True))


def read_cudnn_backward(
    do: Any, q: Any, k: Any, v: Any, o: Any, stats: Any, seed: Any, offset: Any, bias: Any, cum_q: Any, cum_k: Any,
    max_q: int, max_k: int, dropout_p: float, is_causal: bool, *, scale: float | None = None,
) -> Arguments:  # fmt: skip
    return (q, k, v, optional(bias), o, stats, do), (dropout_p, is_causal, scale, (True, True, True))


def read_efficient_backward(
    do: Any, q: Any, k: Any, v: Any, bias: Any, o: Any, stats: Any, seed: Any, offset: Any, dropout_p: float,
    mask: Sequence[bool], is_causal: bool = False, *, scale: float | None = None,
) -> Arguments:  # fmt: skip
    return (q, k, v, optional(bias), o, stats, do), (dropout_p, is_causal, scale, tuple(mask))


def read_cpu_backward(
    do: Any, q: Any, k: Any, v: Any, o: Any, stats: Any, dropout_p: float, is_causal: bool, *, attn_mask: Any = None,
    scale: float | None = None,
) -> Arguments:  # fmt: skip
    return (q, k, v, optional(attn_mask), o, stats, do), (dropout_p, is_causal, scale, (True, True, True))


def forward(form: Form) -> Callable[..., Result]:
    def sketched(
        sketch: Sketch, dropout: float, causal: bool, scale: float | None, has_stats: bool, has_mask: bool
    ) -> Result:
        q, _, v, _ = sketch.tensors
        _check(sketch, form, dropout, causal)
        if has_mask:
            raise Declined("a mask to debug with")
        shape = (*q.shape[:3], v.shape[3])
        o = sketch.allocate(shape, q.dtype, _strides(form, q, shape))
        stats = _allocate_stats(sketch, form, q, has_stats)
        graph = AttentionGraph(sketch)
        heads = [graph.at(place, *form.layout(sketch, place)) for place in (_Q, _K, _V)]
        made, log_sum_exp = graph.pygraph.sdpa(
            heads[_Q], heads[_K], heads[_V], attn_scale=scale_of(q, scale),
            use_causal_mask=causal, bias=graph.bias(), generate_stats=has_stats,
        )  # fmt: skip
        graph.bind(made, o, *form.layout(sketch, o))
        if log_sum_exp is not None:
            graph.bind(log_sum_exp, stats, *_stats_layout(form, q, sketch.strides_at(stats)))
        sketch.add_step(graph.built(), graph.places)
        return (o, stats, *form.rest(sketch))

    return sketched


def backward(form: Form) -> Callable[..., Result]:
    def sketched(sketch: Sketch, dropout: float, causal: bool, scale: float | None, mask: tuple[bool, ...]) -> Result:
        q, k, v, *_ = sketch.tensors
        _check(sketch, form, dropout, causal)
        if any(mask[3:]):
            raise Declined("a gradient of the bias")
        places = [sketch.allocate(own.shape, own.dtype, _strides(form, own, own.shape)) for own in (q, k, v)]
        graph = AttentionGraph(sketch)
        stats = graph.at(_STATS, *_stats_layout(form, q, tuple(sketch.tensors[_STATS].stride())))
        heads = {place: graph.at(place, *form.layout(sketch, place)) for place in (_Q, _K, _V, _O, _DO)}
        gradients = graph.pygraph.sdpa_backward(
            heads[_Q], heads[_K], heads[_V], heads[_O], heads[_DO], stats,
            attn_scale=scale_of(q, scale), bias=graph.bias(), use_causal_mask=causal,
            use_deterministic_algorithm=sketch.is_deterministic,
        )  # fmt: skip
        for tensor, place in zip(gradients, places, strict=True):
            graph.bind(tensor, place, *form.layout(sketch, place))
        sketch.add_step(graph.built(), graph.places)
        return tuple(place if asked else None for place, asked in zip((*places, 0), (*mask, False), strict=False))[
            : len(mask)
        ]

    return sketched


def efficient_backward_native(native: Callable[..., Any], keys: Any, *args: Any, **kwargs: Any) -> Any:
    """torch's kernel expects infinite statistics behind those of the last query, which lowdnn does not write."""
    queries, stats = args[1].shape[2], args[6]
    stats[..., queries:] = inf
    return native(keys, *args, **kwargs)


class AttentionGraph:
    """A pygraph whose tensors lie at places of a sketch."""

    def __init__(self, sketch: Sketch) -> None:
        self.pygraph = _Written(
            io_data_type=_type_of(sketch, _Q), intermediate_data_type=data_type.FLOAT, compute_data_type=data_type.FLOAT
        )
        self.places: dict[int, int] = {}
        self._sketch = sketch
        self._outputs: list[Tensor] = []

    def at(self, place: int, dims: Dims | None = None, strides: Dims | None = None, rows: Rows | None = None) -> Tensor:
        """An input that lies there."""
        own = self._sketch.at(place, dims, strides)
        if own.alignment_bytes < MAX_ALIGNMENT:
            raise Declined(f"an address that is no multiple of {MAX_ALIGNMENT} bytes")
        found = self.pygraph.tensor(own.dims, own.strides, data_type[own.data_type.name], uid=self._uid(place))
        return self._packed(found, rows)

    def bias(self) -> Tensor | None:
        """The bias, with 1 where torch repeats it."""
        bias = self._sketch.tensors[_BIAS]
        if bias.shape is None:
            return None
        missing = 4 - len(bias.shape)
        shape, strides = (1,) * missing + tuple(bias.shape), (0,) * missing + tuple(bias.stride())
        dims = tuple(extent if stride else 1 for extent, stride in zip(shape, strides, strict=True))
        return self.at(_BIAS, dims, strides)

    def bind(
        self, tensor: Tensor, place: int, dims: Dims | None = None, strides: Dims | None = None,
        rows: Rows | None = None,
    ) -> None:  # fmt: skip
        """Makes a tensor an output that lies there."""
        own = self._sketch.at(place, dims, strides)
        tensor.set_output(True).set_uid(self._uid(place)).set_dim(own.dims).set_stride(own.strides)
        self._packed(tensor, rows).set_data_type(data_type[own.data_type.name])

    def _uid(self, place: int) -> int:
        uid = len(self.places) + 1
        self.places[uid] = place
        return uid

    def _packed(self, tensor: Tensor, rows: Rows | None) -> Tensor:
        if rows is not None:
            tensor.set_ragged_offset(rows.offsets).set_ragged_offset_multiplier(rows.row_elements)
        return tensor

    def built(self) -> OperationGraph:
        return self.pygraph.operation_graph()


class _Written(pygraph):
    """A pygraph that hands out what it has become, without a device."""

    def operation_graph(self) -> OperationGraph:
        self.validate()
        return self._graph_or_raise()


def _check(sketch: Sketch, form: Form, dropout: float, causal: bool) -> None:
    q, k, v, *others = sketch.tensors
    for tensor in (q, k, v, *others[1:2], *others[3:]):
        if tensor.dtype not in _NARROW or tensor.dtype != q.dtype:
            raise Declined(f"{name_of(tensor.dtype)}, where float16 or bfloat16 is expected")
        if len(tensor.shape) != 4:
            axes = "[batch, rows, heads, size]" if form.has_rows_first else "[batch, heads, rows, size]"
            raise Declined(f"dims {list(tensor.shape)}, where {axes} are expected")
    if dropout:
        raise Declined("dropout, whose random numbers are torch's own")
    queries, keys = form.extents(q)[2], form.extents(k)[2]
    if causal and queries != keys:
        raise Declined(f"a causal mask of {queries} queries and {keys} keys")


def _allocate_stats(sketch: Sketch, form: Form, q: Any, has_stats: bool) -> int:
    batch, heads, queries, _ = form.extents(q)
    dims = (batch, heads, form.stats_rows(queries) if has_stats else 0)
    strides = form.stats_strides(dims)
    if form.has_last_axis:
        return sketch.allocate((*dims, 1), torch.float32, (*strides, 1))
    return sketch.allocate(dims, torch.float32, strides)


def _stats_layout(form: Form, q: Any, strides: Dims) -> tuple[Dims, Dims]:
    """Dims and strides of the statistics in a graph, from the strides that torch gives them."""
    return (*form.extents(q)[:3], 1), (*strides[:3], 1)


def scale_of(q: Any, scale: float | None) -> float:
    return float(q.shape[-1] ** -0.5 if scale is None else scale)


def _strides(form: Form, like: Any, shape: Sequence[int]) -> Dims:
    dims = tuple(shape)
    if not form.is_like:
        return packed_strides(dims, None if form.has_rows_first else (0, 2, 1, 3))
    strides = like.stride()
    return packed_strides(dims, tuple(sorted(range(4), key=lambda axis: -strides[axis])))


def _type_of(sketch: Sketch, place: int) -> data_type:
    return data_type[sketch.at(place).data_type.name]


def _packed(dims: Dims) -> Dims:
    return packed_strides(dims)


def _by_rows(dims: Dims) -> Dims:
    """A log-sum-exp that is stored by rows of all heads."""
    return packed_strides(dims, (0, 2, 1))


def _as_many(queries: int) -> int:
    return queries


def efficient_rows(queries: int) -> int:
    """The rows of statistics that the memory-efficient kernels have for so many queries."""
    return -(-queries // _EFFICIENT_ROWS) * _EFFICIENT_ROWS


def _flash_rest(sketch: Sketch) -> tuple[Any, ...]:
    """No cumulated lengths; the longest ones; a random state; no mask."""
    q, k = sketch.tensors[_Q], sketch.tensors[_K]
    return None, None, Constant(q.shape[2]), Constant(k.shape[2]), *flash_state(sketch, q)


def flash_state(sketch: Sketch, q: Any) -> tuple[int, int, int]:
    """The places of a random state, and of no mask to debug with."""
    return sketch.allocate((2,), torch.uint64), sketch.allocate((), torch.uint64), sketch.allocate((0,), q.dtype)


def _cudnn_rest(sketch: Sketch) -> tuple[Any, ...]:
    q, k = sketch.tensors[_Q], sketch.tensors[_K]
    return None, None, Constant(q.shape[2]), Constant(k.shape[2]), *random_state(sketch), None


def _efficient_rest(sketch: Sketch) -> tuple[Any, ...]:
    return random_state(sketch)


def _efficient_rows_rest(sketch: Sketch) -> tuple[Any, ...]:
    q, k = sketch.tensors[_Q], sketch.tensors[_K]
    return *random_state(sketch), Constant(q.shape[1]), Constant(k.shape[1])


def random_state(sketch: Sketch) -> tuple[int, int]:
    """The places of a seed and an offset, which nothing reads without dropout."""
    return sketch.allocate((), torch.int64), sketch.allocate((), torch.int64)


def _cpu_rest(sketch: Sketch) -> tuple[Any, ...]:
    return ()


_FLASH = Form(_packed, _as_many, _flash_rest, is_like=True)
_EFFICIENT = Form(_packed, efficient_rows, _efficient_rest, is_like=False)
CUDNN = Form(_packed, _as_many, _cudnn_rest, is_like=True, has_last_axis=True)
EFFICIENT_ROWS_FORWARD = Form(_packed, efficient_rows, _efficient_rows_rest, is_like=False, has_rows_first=True)
EFFICIENT_ROWS_BACKWARD = Form(_packed, efficient_rows, _efficient_rows_rest, is_like=True, has_rows_first=True)
_CPU_FORWARD = Form(_by_rows, _as_many, _cpu_rest, is_like=True)
_CPU_BACKWARD = Form(_by_rows, _as_many, _cpu_rest, is_like=False)


def _overload(name: str, read: Callable[..., Arguments], sketch: Callable[..., Result], **more: Any) -> Overload:
    return Overload(f"_scaled_dot_product_{name}", "attention", read, sketch, kind="attention", **more)


OVERLOADS = (
    _overload("flash_attention", read_flash, forward(_FLASH), keys=("CUDA",)),
    _overload("flash_attention_backward", read_flash_backward, backward(_FLASH), keys=("CUDA",)),
    _overload("efficient_attention", read_efficient, forward(_EFFICIENT), keys=("CUDA",)),
    _overload(
        "efficient_attention_backward", read_efficient_backward, backward(_EFFICIENT), keys=("CUDA",),
        fallback=efficient_backward_native,
    ),
    _overload("cudnn_attention", read_efficient, forward(CUDNN), keys=("CUDA",)),
    _overload("cudnn_attention_backward", read_cudnn_backward, backward(CUDNN), keys=("CUDA",)),
    _overload("flash_attention_for_cpu", read_cpu, forward(_CPU_FORWARD), keys=("CPU",)),
    _overload("flash_attention_for_cpu_backward", read_cpu_backward, backward(_CPU_BACKWARD), keys=("CPU",)),
)  # fmt: skip
