"""``pygraph.sdpa_backward`` with what ``sdpa`` does to scores and weights: along a direction, the sum of a gradient
times it is the slope of sum(O * dO), with O written out in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowdnn.frontend as cudnn
from lowdnn.backend.handle import Handle
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.python_graph import pygraph
from lowdnn.ops import philox
from lowdnn.ops.rng import RngOperation
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.status import BadParamError, ShapeMismatchError
from tests.support.data import fresh_seed
from tests.support.errors import raises

B, H, HK, SQ, SKV, D = 2, 4, 2, 21, 37, 16
SCALE = D**-0.5
HALF, FLOAT = cudnn.data_type.HALF, cudnn.data_type.FLOAT
QUERY, KEY = np.arange(SQ)[:, None], np.arange(SKV)[None, :]

Arrays = dict[str, np.ndarray]


def attention(data: Arrays, scores_of: Callable[[np.ndarray, Arrays], np.ndarray], factors: np.ndarray) -> np.ndarray:
    """O; ``scores_of`` changes scaled scores, weights are multiplied by ``factors``."""
    q, k, v = (data[name].astype(np.float64) for name in "qkv")
    k, v = (np.repeat(values, H // HK, axis=1) for values in (k, v))
    scores = scores_of(q @ np.swapaxes(k, -1, -2) * SCALE, data)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (factors * weights / weights.sum(-1, keepdims=True)) @ v


class Program:
    """Both passes of an attention, with tensors for what is in ``data``; by name."""

    def __init__(self, handle: Handle, data: Arrays) -> None:
        self.handle, self.data = handle, data
        self.values: Arrays = dict(data)

    def graph(self, name: str) -> tuple[pygraph, dict[str, Tensor]]:
        graph = pygraph(name, HALF, FLOAT, FLOAT, self.handle)
        tensors = {
            name: graph.tensor_like(cudnn.from_numpy(values, self.handle)) for name, values in self.values.items()
        }
        return graph, tensors

    def run(self, graph: pygraph, tensors: dict[str, Tensor], outputs: dict[str, Tensor]) -> Arrays:
        for tensor in outputs.values():
            tensor.set_output(True)
        graph.build([cudnn.heur_mode.A])
        arrays = {
            name: np.zeros(t.get_dim(), np.float32 if t.get_data_type() == FLOAT else np.float16)
            for name, t in outputs.items()
        }
        given = {tensors[name]: cudnn.from_numpy(values, self.handle) for name, values in self.values.items()}
        found = {tensor: cudnn.from_numpy(arrays[name], self.handle) for name, tensor in outputs.items()}
        workspace = cudnn.from_numpy(np.zeros(max(1, graph.get_workspace_size()), np.uint8), self.handle)
        graph.execute(given | found, workspace)
        return {name: found[tensor].numpy() for name, tensor in outputs.items()}

    def forward(self, **arguments: Any) -> None:
        """``arguments``: by that of sdpa, what makes its value of the graph's tensors."""
        graph, tensors = self.graph("forward")
        given = {name: make(tensors) for name, make in arguments.items()}
        o, stats = graph.sdpa(*(tensors[name] for name in "qkv"), attn_scale=SCALE, generate_stats=True, **given)
        assert stats is not None
        self.values |= self.run(graph, tensors, {"o": o, "stats": stats.set_data_type(FLOAT)})
        self.values["d_o"] = np.random.default_rng(fresh_seed()).standard_normal(o.get_dim()).astype(np.float16)

    def backward(self, extra: Callable[[pygraph], dict[str, Tensor]] = lambda graph: {}, **arguments: Any) -> Arrays:
        """``extra``: more outputs, by the argument that they are given as."""
        graph, tensors = self.graph("backward")
        more = extra(graph)
        given = {name: make(tensors) for name, make in arguments.items()}
        ports = (tensors[name] for name in ("q", "k", "v", "o", "d_o", "stats"))
        gradients = graph.sdpa_backward(*ports, attn_scale=SCALE, **given, **more)
        outputs = {name: tensor.set_data_type(FLOAT) for name, tensor in zip("qkv", gradients, strict=True)}
        return self.run(graph, tensors, outputs | more)

    def check(self, gradients: Arrays, scores_of: Callable[[np.ndarray, Arrays], np.ndarray], factors: Any = 1) -> None:
        for name, gradient in gradients.items():
            direction, step = np.random.default_rng(fresh_seed()).standard_normal(gradient.shape), 1e-4
            ends = [
                attention(self.data | {name: self.data[name] + sign * step * direction}, scores_of, np.asarray(factors))
                for sign in (-1, 1)
            ]
            slope = float(((ends[1] - ends[0]) * self.values["d_o"].astype(np.float64)).sum()) / (2 * step)
            assert (gradient * direction).sum() == pytest.approx(slope, rel=0.02, abs=0.2), name


def drawn(**shapes: tuple[int, ...]) -> Arrays:
    rng = np.random.default_rng(fresh_seed())
    shapes = {"q": (B, H, SQ, D), "k": (B, HK, SKV, D), "v": (B, HK, SKV, D)} | shapes
    return {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}


def test_bias_and_alibi(handle: Handle) -> None:
    program = Program(handle, drawn(bias=(1, H, SQ, SKV)))
    slopes = 2.0 ** (-8 * (np.arange(H) + 1) / H)

    def scores_of(scores: np.ndarray, data: Arrays) -> np.ndarray:
        return np.where(KEY <= QUERY, scores + data["bias"] + slopes[:, None, None] * (KEY - QUERY), -np.inf)

    arguments: dict[str, Any] = {
        "bias": lambda tensors: tensors["bias"],
        "use_alibi_mask": lambda tensors: True,
        "use_causal_mask": lambda tensors: True,
    }
    program.forward(**arguments)
    gradients = program.backward(lambda graph: {"dBias": graph.tensor((1, H, SQ, SKV), data_type=FLOAT)}, **arguments)
    gradients["bias"] = gradients.pop("dBias")
    assert not gradients["bias"][..., KEY > QUERY].any()
    program.check(gradients, scores_of)


class SoftCap:
    """A score modifier whose gradient needs what it made."""

    def __init__(self, cap: float) -> None:
        self.cap = cap

    def forward(self, graph: pygraph, scores: Tensor) -> Tensor:
        self.share = graph.div(a=scores, b=self.cap)
        return graph.mul(a=graph.tanh(input=self.share), b=self.cap)

    def backward(self, graph: pygraph, gradient: Tensor) -> Tensor:
        return graph.tanh_backward(loss=gradient, input=self.share)


@pytest.mark.parametrize("is_given", [True, False])
def test_a_score_modifier_and_its_gradient(handle: Handle, is_given: bool) -> None:
    """The gradient is derived where it is not given."""
    program = Program(handle, drawn())
    program.forward(score_mod=lambda tensors: SoftCap(0.5).forward)
    cap = SoftCap(0.5)
    given = {"score_mod_bprop": lambda tensors: cap.backward} if is_given else {}
    gradients = program.backward(score_mod=lambda tensors: cap.forward, **given)
    program.check(gradients, lambda scores, data: 0.5 * np.tanh(scores / 0.5))


def test_random_dropout(handle: Handle) -> None:
    """The numbers are those of the forward pass."""
    program = Program(handle, drawn())
    seed, offset = (np.random.default_rng(fresh_seed()).integers(0, 2**40, (1, 1, 1, 1)) for _ in range(2))
    program.values |= {"seed": seed, "offset": offset}
    dropout = {"dropout": lambda tensors: (0.25, tensors["seed"], tensors["offset"])}
    program.forward(**dropout)
    words = philox.words(int(seed.item()), int(offset.item()), np.arange(B * H * SQ * SKV, dtype=np.uint64))
    factors = (words < 0.75 * 2**32).reshape(B, H, SQ, SKV) / 0.75
    o = attention(program.data, lambda scores, data: scores, factors)
    np.testing.assert_allclose(program.values["o"].astype(np.float64), o, rtol=2e-3, atol=2e-3)
    program.check(program.backward(**dropout), lambda scores, data: scores, factors)


def test_a_dropout_mask(handle: Handle) -> None:
    """Beside which there are its scale and the inverse of that."""
    program = Program(handle, drawn())
    kept = np.random.default_rng(fresh_seed()).integers(0, 2, (B, H, SQ, SKV)).astype(np.float16)
    program.values |= {"mask": kept, "scale": np.full((1, 1, 1, 1), 2, np.float32)}
    program.forward(dropout=lambda tensors: (tensors["mask"], tensors["scale"]))
    program.values["inverse"] = np.full((1, 1, 1, 1), 0.5, np.float32)
    gradients = program.backward(dropout=lambda tensors: tuple(tensors[name] for name in ("mask", "scale", "inverse")))
    program.check(gradients, lambda scores, data: scores, 2.0 * kept)


def test_ragged_tensors(handle: Handle) -> None:
    """Sequences packed as (T, H, D): the second has no queries, the third one no keys; the last rows are of none."""
    rng = np.random.default_rng(fresh_seed())
    counts = {"q": np.array([SQ, 0, 3]), "k": np.array([9, 5, 0])}
    graph = pygraph("backward", HALF, FLOAT, FLOAT, handle)
    values: dict[Tensor, Any] = {}

    def given(array: np.ndarray) -> Tensor:
        tensor = graph.tensor_like(cudnn.from_numpy(array, handle))
        values[tensor] = cudnn.from_numpy(array, handle)
        return tensor

    offsets = {name: np.concatenate([[0], np.cumsum(n)]).astype(np.int32) for name, n in counts.items()}
    starts = {name: given(sums.reshape(-1, 1, 1, 1)) for name, sums in offsets.items()}

    def ragged(tensor: Tensor, rows: str) -> Tensor:
        _, heads, most, size = tensor.get_dim()
        tensor.set_stride((most * heads * size, size, heads * size, 1))
        return tensor.set_ragged_offset(starts[rows]).set_ragged_offset_multiplier(heads * size)

    kinds = {"q": ("q", H, D), "k": ("k", HK, D), "v": ("k", HK, D), "o": ("q", H, D), "d_o": ("q", H, D)}
    packed = {name: np.zeros((int(counts[rows].sum()) + 2, n, size)) for name, (rows, n, size) in kinds.items()}
    packed["stats"] = np.zeros((*packed["q"].shape[:2], 1))
    wanted = {name: np.zeros(packed[name].shape) for name in "qkv"}
    for name in ("q", "k", "v", "d_o"):
        packed[name][:] = rng.standard_normal(packed[name].shape).astype(np.float16)
    for batch in range(3):
        of_q, of_k = (slice(*offsets[name][batch : batch + 2]) for name in "qk")
        q, d_o = (packed[name][of_q].transpose(1, 0, 2) for name in ("q", "d_o"))
        k, v = (np.repeat(packed[name][of_k].transpose(1, 0, 2), H // HK, axis=0) for name in "kv")
        exponentials = np.exp(q @ k.transpose(0, 2, 1) * SCALE)
        with np.errstate(all="ignore"):
            stats = np.log(exponentials.sum(-1, keepdims=True))
            weights = np.nan_to_num(exponentials / exponentials.sum(-1, keepdims=True))
        o = weights @ v
        packed["o"][of_q], packed["stats"][of_q] = (x.transpose(1, 0, 2) for x in (o, stats))
        ds = SCALE * weights * (d_o @ v.transpose(0, 2, 1) - (d_o * o).sum(-1, keepdims=True))
        wanted["q"][of_q] = (ds @ k).transpose(1, 0, 2)
        for name, product in {"k": ds.transpose(0, 2, 1) @ q, "v": weights.transpose(0, 2, 1) @ d_o}.items():
            wanted[name][of_k] = product.reshape(HK, H // HK, *product.shape[1:]).sum(1).transpose(1, 0, 2)

    tensors = []
    for name, (rows, heads, size) in {**kinds, "stats": ("q", H, 1)}.items():
        kind, storage = (FLOAT, np.float32) if name == "stats" else (HALF, np.float16)
        tensor = graph.tensor((3, heads, int(counts[rows].max()), size), data_type=kind)
        tensors.append(ragged(tensor, rows))
        values[tensor] = cudnn.from_numpy(packed[name].astype(storage), handle)
    lengths = [given(n.astype(np.int32).reshape(3, 1, 1, 1)) for n in counts.values()]
    gradients = graph.sdpa_backward(
        *tensors, attn_scale=SCALE, use_padding_mask=True, seq_len_q=lengths[0], seq_len_kv=lengths[1]
    )
    for name, tensor, own in zip("qkv", gradients, tensors, strict=False):
        ragged(tensor.set_dim(own.get_dim()).set_output(True).set_data_type(FLOAT), kinds[name][0])
        values[tensor] = cudnn.from_numpy(np.full(wanted[name].shape, 7, np.float32), handle)
    graph.build([cudnn.heur_mode.A])
    graph.execute(values, cudnn.from_numpy(np.zeros(max(1, graph.get_workspace_size()), np.uint8), handle))
    for name, tensor in zip("qkv", gradients, strict=True):
        found = values[tensor].numpy()
        np.testing.assert_allclose(found[:-2], wanted[name][:-2], rtol=2e-2, atol=2e-2)
        assert (found[-2:] == 7).all()


def test_what_happens_to_scores_is_inside_of_one_operation() -> None:
    """A bias that the graph computes comes from outside."""
    graph = pygraph("sdpa", HALF, FLOAT, FLOAT, sm_version=90)
    q, bias = graph.tensor((B, H, SQ, D)), graph.tensor((1, H, SQ, SQ))
    number = graph.tensor((1, 1, 1, 1), data_type=cudnn.data_type.INT64)
    stats, dbias = (graph.tensor(dims, data_type=FLOAT) for dims in ((B, H, SQ, 1), (1, H, SQ, SQ)))
    gradients = graph.sdpa_backward(
        q, q, q, q, q, stats, bias=graph.mul(bias, 2.0), dBias=dbias, dropout=(0.5, number, number)
    )
    for gradient in gradients:
        gradient.set_output(True).set_data_type(HALF)
    doubled, operation = graph._lowered().operations
    assert isinstance(operation, SdpaBackward)
    assert operation.inner is not None
    assert [type(op).__name__ for op in operation.inner.operations] == [
        "RngOperation",
        "PointwiseOperation",
        "PointwiseOperation",
        "PointwiseOperation",
    ]
    assert operation.dbias is not None
    assert operation.dbias.dims == (1, H, SQ, SQ)
    assert doubled.output.uid in {tensor.uid for tensor in operation.inner.operands}  # type: ignore[attr-defined]


def test_the_mask_of_random_dropout_is_stored_once() -> None:
    """The gradients read what is stored."""
    graph = pygraph("sdpa", HALF, FLOAT, FLOAT, sm_version=90)
    q, dump = graph.tensor((B, H, SQ, D)), graph.tensor((B, H, SQ, SQ), data_type=FLOAT)
    stats, number = graph.tensor((B, H, SQ, 1), data_type=FLOAT), graph.tensor((1,), data_type=cudnn.data_type.INT64)
    gradients = graph.sdpa_backward(q, q, q, q, q, stats, dropout=(0.5, number, number), rng_dump=dump)
    for gradient in gradients:
        gradient.set_output(True).set_data_type(HALF)
    random, operation = graph._lowered().operations
    assert isinstance(random, RngOperation)
    assert isinstance(operation, SdpaBackward)
    assert operation.inner is not None
    assert random.y.uid == dump.get_uid()
    assert not random.y.is_virtual
    assert random.y in operation.inner.operands


def test_arguments_that_contradict_each_other_are_refused() -> None:
    graph = pygraph("sdpa", HALF, FLOAT, FLOAT, sm_version=90)
    q, stats = graph.tensor((B, H, SQ, D)), graph.tensor((B, H, SQ, 1), data_type=FLOAT)
    for argument, needed in {"dBias": "bias", "rng_dump": "dropout", "dSink_token": "sink_token"}.items():
        with raises(BadParamError, f"sdpa_backward.{argument}", expected=f"None without {needed}"):
            graph.sdpa_backward(q, q, q, q, q, stats, **{argument: q})
    with raises(BadParamError, "sdpa_backward.score_mod_bprop", expected="None without score_mod"):
        graph.sdpa_backward(q, q, q, q, q, stats, score_mod_bprop=lambda graph, gradient: gradient)
    packed = graph.tensor((B, H, SQ, D), ragged_offset=graph.tensor((B + 1, 1, 1, 1)))
    with raises(BadParamError, "sdpa_backward.use_padding_mask", expected="True beside a ragged q", got="False"):
        graph.sdpa_backward(packed, q, q, q, q, stats)
    with raises(BadParamError, "sdpa_backward.score_mod", expected="no other mask beside it"):
        graph.sdpa_backward(q, q, q, q, q, stats, use_causal_mask=True, score_mod=lambda graph, scores: scores)


def test_what_cannot_be_inside_is_refused() -> None:
    def lowered(**arguments: Any) -> None:
        graph = pygraph("sdpa", HALF, FLOAT, FLOAT, sm_version=90)
        q, stats = graph.tensor((B, H, SQ, D)), graph.tensor((B, H, SQ, 1), data_type=FLOAT)
        given = {name: graph.tensor(dims) if isinstance(dims, tuple) else dims for name, dims in arguments.items()}
        for gradient in graph.sdpa_backward(q, q, q, q, q, stats, **given):
            gradient.set_output(True).set_data_type(HALF)
        graph._lowered()

    with raises(
        ShapeMismatchError, "sdpa_backward.dBias.dims", expected="1 for batch or heads", got=f"[1, 1, 1, {SQ}]"
    ):
        lowered(bias=(1, 1, 1, SQ), dBias=(1, 1, 1, SQ))
    with pytest.raises(
        BadParamError, match="expected a virtual tensor inside of another operation, got one that is stored"
    ):
        lowered(score_mod=lambda graph, scores: graph.neg(scores).set_output(True))
    with pytest.raises(BadParamError, match="expected a tensor that depends on what the subgraph is given"):
        lowered(score_mod=lambda graph, scores: graph.tensor((B, H, SQ, SQ)))
    with raises(BadParamError, "subgraph.operations", expected="pointwise operations", got="ReductionOperation"):
        lowered(
            score_mod=lambda graph, scores: graph.sub(
                scores,
                graph.reduction(scores, cudnn.reduction_mode.MAX).set_dim((B, H, SQ, 1)).set_stride((H * SQ, SQ, 1, 1)),
            )
        )
