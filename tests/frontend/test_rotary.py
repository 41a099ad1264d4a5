"""``pygraph.rope`` and its gradient, end to end."""

from __future__ import annotations

import numpy as np
import pytest

import lowdnn.frontend as cudnn
from lowdnn.backend.handle import Handle
from lowdnn.frontend.python_graph import pygraph
from lowdnn.ops.rope_forward import RopeForward
from lowdnn.status import OutOfBoundError
from tests.support.errors import raises

HALF, FLOAT = cudnn.data_type.HALF, cudnn.data_type.FLOAT
X, FREQS = (2, 3, 5, 24), (5, 1, 1, 8)


@pytest.mark.parametrize("is_gradient", [False, True])
def test_rotation(handle: Handle, is_gradient: bool) -> None:
    rng = np.random.default_rng(5)
    x, freqs = rng.standard_normal(X).astype(np.float16), rng.normal(0, 9, FREQS).astype(np.float32)
    graph = pygraph("rope", HALF, FLOAT, FLOAT, handle)
    inputs = [graph.tensor_like(cudnn.from_numpy(array, handle)) for array in (x, freqs)]
    method = graph.rope_backward if is_gradient else graph.rope
    y = method(*inputs, output_scale=0.5, rope_dim=8).set_output(True).set_data_type(HALF)
    graph.build([cudnn.heur_mode.A])
    assert (y.get_dim(), y.get_stride()) == (inputs[0].get_dim(), inputs[0].get_stride())
    result = cudnn.from_numpy(np.zeros(X, np.float16), handle)
    values = {inputs[0]: cudnn.from_numpy(x, handle), inputs[1]: cudnn.from_numpy(freqs, handle), y: result}
    graph.execute(values, cudnn.from_numpy(np.zeros(1, np.uint8), handle))
    turn = np.exp((-1j if is_gradient else 1j) * freqs[:, 0, 0, :4].astype(float))
    rotated = 0.5 * (x[..., 16:20] + 1j * x[..., 20:].astype(float)) * turn
    wanted = np.concatenate([0.5 * x[..., :16], rotated.real, rotated.imag], axis=-1)
    np.testing.assert_allclose(result.numpy(), wanted, rtol=2e-3, atol=1e-3)


def test_attention_of_rotated_queries_and_keys(handle: Handle) -> None:
    """Scores depend on the distance of positions alone: equal rows of q and k give a weight that falls with it."""
    dims, freqs = (
        (1, 2, 6, 16),
        np.arange(6, dtype=np.float32)[:, None, None, None] * np.ones((1, 1, 1, 16), np.float32),
    )
    ones = np.ones(dims, np.float16)
    graph = pygraph("rope", HALF, FLOAT, FLOAT, handle)
    x, angles = (graph.tensor_like(cudnn.from_numpy(array, handle)) for array in (ones, freqs / 8))
    q, k = (graph.rope(x, angles).set_data_type(HALF) for _ in range(2))
    o, stats = graph.sdpa(q, k, x, attn_scale=0.25, generate_stats=True)
    o.set_output(True)
    stats.set_output(True)
    graph.build([cudnn.heur_mode.A])
    found = {
        t: cudnn.from_numpy(np.zeros(t.get_dim(), t_type), handle) for t, t_type in ((o, np.float16), (stats, "f4"))
    }
    values = {x: cudnn.from_numpy(ones, handle), angles: cudnn.from_numpy(freqs / 8, handle), **found}
    graph.execute(values, cudnn.from_numpy(np.zeros(graph.get_workspace_size(), np.uint8), handle))
    distance = (np.arange(6)[:, None] - np.arange(6)) / 8
    wanted = np.log(np.exp(0.25 * 16 * np.cos(distance)).sum(-1))
    np.testing.assert_allclose(found[stats].numpy()[0, 0, :, 0], wanted, rtol=2e-3)
    np.testing.assert_allclose(found[o].numpy(), ones, rtol=2e-3)


def test_checks() -> None:
    graph = pygraph("rope", HALF, FLOAT, FLOAT, sm_version=90)
    x, freqs = graph.tensor(X), graph.tensor(FREQS, data_type=FLOAT)
    with raises(OutOfBoundError, "rope.rope_dim", expected="0 to", got="-2"):
        graph.rope(x, freqs, rope_dim=-2)
    graph.rope(x, freqs, rope_dim=8).set_output(True)
    (operation,) = graph._lowered().operations
    assert isinstance(operation, RopeForward)
    assert operation.rotation.passed == 16
