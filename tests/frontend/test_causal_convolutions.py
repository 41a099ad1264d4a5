"""``pygraph.causal_conv1d``, its gradient and its step, and back-to-back convolutions, end to end."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lowdnn.frontend as cudnn
from lowdnn.backend.handle import Handle
from lowdnn.frontend.python_graph import pygraph
from lowdnn.status import BadParamError
from tests.support.data import fresh_seed
from tests.support.runtime import download, upload

FLOAT, INT32 = cudnn.data_type.FLOAT, cudnn.data_type.INT32
RNG = np.random.default_rng(5)
X, W, B = (RNG.standard_normal(dims).astype(np.float32) for dims in ((2, 6, 30), (6, 4), (6,)))


def silu(z: NDArray[Any]) -> NDArray[Any]:
    return z / (1 + np.exp(-z))


def convolved(x: NDArray[Any]) -> NDArray[Any]:
    """The sums of (..., D, L) with W and B."""
    before = np.concatenate([np.zeros((*x.shape[:-1], 3)), x], axis=-1)
    return sum(W[:, j : j + 1] * before[..., j : j + x.shape[-1]] for j in range(4)) + B[:, None]


def graph_of(handle: Handle) -> pygraph:
    return pygraph("causal", FLOAT, FLOAT, FLOAT, handle)


@pytest.mark.parametrize(("activation", "function"), [(None, np.array), ("identity", np.array), ("swish", silu)])
def test_activations(handle: Handle, activation: str | None, function: Any) -> None:
    graph = graph_of(handle)
    x, w, b = (graph.tensor(array.shape, name=name) for array, name in ((X, "x"), (W, "w"), (B, "b")))
    y, states = graph.causal_conv1d(x, w, b, activation=activation)
    assert states is None
    y.set_output(True).set_name("y")
    found = graph.run(x=X, w=W, b=B)["y"].numpy()
    np.testing.assert_allclose(found, function(convolved(X)), rtol=1e-4, atol=1e-5)


def test_channels_last_stays_so(handle: Handle) -> None:
    graph = graph_of(handle)
    x, w = graph.tensor([2, 6, 30], [180, 1, 6]), graph.tensor([6, 4])
    y, states = graph.causal_conv1d(x, w, return_final_states=True)
    assert states is not None
    for output in (y, states):
        output.set_output(True)
    graph.build([cudnn.heur_mode.A])
    assert y.get_stride() == [180, 1, 6]
    assert (states.get_dim(), states.get_stride()) == ([2, 6, 3], [18, 3, 1])


def test_steps_of_decoding(handle: Handle) -> None:
    """A graph of one element, run again and again, gives what a whole sequence gives."""
    graph = graph_of(handle)
    x, state, w = (graph.tensor(dims, name=name) for dims, name in (([2, 6, 1], "x"), ([2, 6, 3], "s"), ([6, 4], "w")))
    y, after = graph.causal_conv1d_update(x, state, w, graph.tensor([6], name="b"), activation="silu")
    y.set_output(True).set_name("y")
    after.set_output(True).set_name("after")
    states, wanted = np.zeros((2, 6, 3), np.float32), silu(convolved(X))
    for step in range(5):
        found = graph.run(x=np.ascontiguousarray(X[:, :, step : step + 1]), s=states, w=W, b=B)
        np.testing.assert_allclose(found["y"].numpy()[..., 0], wanted[..., step], rtol=1e-4, atol=1e-5)
        states = found["after"].numpy()


def test_decoding_of_requests_that_come_and_go(handle: Handle) -> None:
    """Each request has a slot, whichever row of the batch it is in; a row of -1 is padding."""
    graph, dims = graph_of(handle), {"x": [3, 6, 1], "pool": [5, 6, 3], "w": [6, 4], "b": [6]}
    x, state, w, b = (graph.tensor(extents, name=name) for name, extents in dims.items())
    slots = graph.tensor([3], data_type=INT32, name="slots")
    y, after = graph.causal_conv1d_update(x, state, w, b, conv_state_indices=slots)
    y.set_output(True).set_name("y")
    after.set_output(True).set_name("after")
    graph.build([cudnn.heur_mode.A])
    assert after.get_dim() == [5, 6, 3]
    pool, wanted = upload(handle.runtime, np.zeros((5, 6, 3), np.float32)), convolved(X)
    sequences, steps = {3: 0, 1: 1}, {3: 0, 1: 0}  # by slot: the sequence of X, and how much of it has been
    for rows in ((3, -1, 1), (1, 3, -1), (-1, -1, 1), (3, 1, 5)):
        given = [X[sequences[slot], :, steps[slot]] if slot in steps else X[0, :, 9] for slot in rows]
        arrays = {"x": np.stack(given), "w": W, "b": B, "y": np.ones((3, 6), np.float32)}
        arrays["slots"] = np.array(rows, np.int32)
        buffers = {name: upload(handle.runtime, item) for name, item in arrays.items()}
        buffers |= {"pool": pool, "after": pool}
        graph.execute({name: buffer.address for name, buffer in buffers.items()}, handle=handle)
        handle.runtime.context.synchronize()
        found = download(buffers["y"], np.float32).reshape(3, 6)
        for row, slot in enumerate(rows):
            expected = wanted[sequences[slot], :, steps[slot]] if slot in steps else 0
            np.testing.assert_allclose(found[row], expected, rtol=1e-4, atol=1e-5)
        steps = {slot: step + (slot in rows) for slot, step in steps.items()}
    assert not download(pool, np.float32).reshape(5, 6, 3)[[0, 2, 4]].any()


def test_gradients_of_packed_sequences(handle: Handle) -> None:
    """The gradients of each sequence are as if it were alone."""
    offsets, packed = np.array([0, 9, 9, 30], np.int32), X[:1]
    dy = RNG.standard_normal(packed.shape).astype(np.float32)
    graph = graph_of(handle)
    g, x, w, b = (
        graph.tensor(array.shape, name=name) for array, name in ((dy, "dy"), (packed, "x"), (W, "w"), (B, "b"))
    )
    bounds = graph.tensor([4], data_type=INT32, name="bounds")
    results = graph.causal_conv1d_backward(g, x, w, b, cu_seqlens=bounds)
    assert results[3] is None
    for output, name in zip(results, ("dx", "dw", "db", ""), strict=True):
        if output is not None:
            output.set_output(True).set_name(name)
    found = graph.run(dy=dy, x=packed, w=W, b=B, bounds=offsets)
    dw, parts = np.zeros((6, 4)), []
    for first, end in ((0, 9), (9, 30)):
        part, gradient = packed[0, :, first:end], dy[0, :, first:end]
        before = np.concatenate([np.zeros((6, 3)), part], axis=1)
        after = np.concatenate([gradient, np.zeros((6, 3))], axis=1)
        length = end - first
        dw += np.stack([np.sum(gradient * before[:, j : j + length], axis=1) for j in range(4)], axis=1)
        parts.append(sum(W[:, j : j + 1] * after[:, 3 - j : 3 - j + length] for j in range(4)))
    np.testing.assert_allclose(found["dx"].numpy()[0], np.concatenate(parts, axis=1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["dw"].numpy(), dw, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["db"].numpy(), dy[0].sum(-1), rtol=1e-4, atol=1e-4)


def test_it_is_a_part_of_larger_graphs(handle: Handle) -> None:
    """Half of the channels gate the others, as in layers of state-space models."""
    graph = graph_of(handle)
    x, w = graph.tensor([2, 6, 30], name="x"), graph.tensor([6, 4], name="w")
    mixed, _ = graph.causal_conv1d(x, w, activation="silu")
    y = graph.mul(mixed, x).set_output(True).set_name("y")
    assert y is not None
    found = graph.run(x=X, w=W)["y"].numpy()
    wanted = silu(convolved(X) - B[:, None]) * X
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def gated(values: dict[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """(y, y_gated) of back-to-back convolutions, by one loop over the taps of each filter."""

    def filtered(rows: NDArray[Any], taps: NDArray[Any]) -> NDArray[Any]:
        count, length = taps.shape[1], rows.shape[-1]
        before = np.concatenate([np.zeros((*rows.shape[:-1], count - 1)), rows], axis=-1)
        return sum(taps[:, j : j + 1] * before[..., j : j + length] for j in range(count))

    p = filtered(values["x"], values["weights_proj"])
    g = p[:, 1::3] * p[:, 2::3]
    y = filtered(g, values["weights_mixer"]) + values["skip_bias"][:, None] * g
    return y, y * p[:, ::3]


def drawn_gated() -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(fresh_seed())
    dims = {"x": (2, 6, 40), "weights_proj": (6, 4), "weights_mixer": (2, 9), "skip_bias": (2,)}
    return {name: rng.standard_normal(extents) for name, extents in dims.items()}


def test_back_to_back_convolutions(handle: Handle) -> None:
    values, graph = drawn_gated(), graph_of(handle)
    y, y_gated = graph.b2b_causal_conv1d(*(graph.tensor(item.shape, name=name) for name, item in values.items()))
    y.set_output(True).set_name("y")
    y_gated.set_output(True).set_name("y_gated")
    found = graph.run(**{name: item.astype(np.float32) for name, item in values.items()})
    for name, wanted in zip(("y", "y_gated"), gated(values), strict=True):
        np.testing.assert_allclose(found[name].numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_only_what_is_asked_for_is_stored(handle: Handle) -> None:
    values, graph = drawn_gated(), graph_of(handle)
    _, y_gated = graph.b2b_causal_conv1d(*(graph.tensor(item.shape, name=name) for name, item in values.items()))
    y_gated.set_output(True).set_name("y_gated")
    found = graph.run(**{name: item.astype(np.float32) for name, item in values.items()})
    np.testing.assert_allclose(found["y_gated"].numpy(), gated(values)[1], rtol=1e-4, atol=1e-4)


def test_gradients_of_back_to_back_convolutions(handle: Handle) -> None:
    """Against differences of what the forward form gives in float64."""
    values, graph, step = drawn_gated(), graph_of(handle), 1e-6
    dy = np.random.default_rng(fresh_seed()).standard_normal((2, 2, 40))
    given = {"dy": dy, **values, "y": gated(values)[0]}
    results = graph.b2b_causal_conv1d_backward(
        **{name: graph.tensor(item.shape, name=name) for name, item in given.items()}
    )
    for output, name in zip(results, values, strict=True):
        output.set_output(True).set_name(f"d{name}")
    found = graph.run(**{name: item.astype(np.float32) for name, item in given.items()})
    rng = np.random.default_rng(fresh_seed())
    for name, item in values.items():
        direction = rng.standard_normal(item.shape)
        sums = [np.sum(dy * gated({**values, name: item + sign * step * direction})[1]) for sign in (1, -1)]
        wanted = (sums[0] - sums[1]) / (2 * step)
        assert found[f"d{name}"].numpy().shape == item.shape
        size = np.sqrt(np.sum(np.square(found[f"d{name}"].numpy(), dtype=np.float64)))
        assert abs(np.sum(direction * found[f"d{name}"].numpy()) - wanted) < 1e-4 * size + 1e-4


@pytest.mark.parametrize(
    ("x", "weight", "expected"),
    [
        ([3, 16], [3, 5], "(B, D, L)"),
        ([2, 3, 0], [3, 5], "(B, D, L) of 1 or more channels and positions"),
        ([2, 0, 16], [0, 5], "(B, D, L) of 1 or more channels and positions"),
        ([2, 3, 16, 1], [3, 5], "(B, D, L)"),
        ([2, 3, 16], [3], "(3, K) of 1 or more taps"),
        ([2, 3, 16], [6, 5], "(3, K) of 1 or more taps"),
        ([2, 3, 16], [3, 0], "(3, K) of 1 or more taps"),
        ([2, 3, 16], [3, 1, 5], "(3, K) of 1 or more taps"),
    ],
)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_what_is_no_sequence_or_no_long_filter_for_each_channel(
    handle: Handle, x: list[int], weight: list[int], expected: str, direction: str
) -> None:
    graph = graph_of(handle)
    given = graph.tensor(x, name="x"), graph.tensor(weight, name="weight")
    if direction == "forward":
        graph.fft_causal_conv1d(*given).set_output(True)
    else:
        for output in graph.fft_causal_conv1d_backward(graph.tensor(x), *given):
            output.set_output(True)
    with pytest.raises(
        BadParamError,
        match=rf"^BAD_PARAM fft_causal_conv1d\w*\.(x|weight)\.dims: expected {re.escape(expected)}, got \[",
    ):
        graph.build([cudnn.heur_mode.A])


@pytest.mark.parametrize("taps", [5, 200])
def test_long_filters_and_their_gradients(handle: Handle, taps: int) -> None:
    """Filters begin with the current position; both gradients are in one graph with the forward form."""
    rng = np.random.default_rng(fresh_seed())
    values = {"x": rng.standard_normal((2, 3, 256)), "weight": rng.standard_normal((3, taps))}
    values["dy"] = rng.standard_normal((2, 3, 256))
    graph = graph_of(handle)
    x, weight, dy = (graph.tensor(item.shape, name=name) for name, item in values.items())
    results = {"y": graph.fft_causal_conv1d(x, weight)}
    results["dx"], results["dweight"] = graph.fft_causal_conv1d_backward(dy, x, weight)
    for name, output in results.items():
        output.set_output(True).set_name(name)
    found = graph.run(**{name: item.astype(np.float32) for name, item in values.items()})
    wanted = {name: np.zeros(values[of].shape) for name, of in (("y", "x"), ("dx", "x"), ("dweight", "weight"))}
    for q in range(taps):
        filters, count = values["weight"][:, q : q + 1], 256 - q
        wanted["y"][..., q:] += filters * values["x"][..., :count]
        wanted["dx"][..., :count] += filters * values["dy"][..., q:]
        wanted["dweight"][:, q] = np.sum(values["dy"][..., q:] * values["x"][..., :count], axis=(0, 2))
    for name, expected in wanted.items():
        assert found[name].numpy().shape == expected.shape
        np.testing.assert_allclose(found[name].numpy(), expected, rtol=1e-4, atol=1e-3, err_msg=name)
