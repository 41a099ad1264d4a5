"""Products of matrices, with what is fused to them."""

from __future__ import annotations

from itertools import pairwise

import cudnn
import ml_dtypes
import numpy as np
import pytest

from tests.cudnn_frontend.data import check_close, check_exact, integers, normal, wide
from tests.cudnn_frontend.program import DT, VERSION, Session


def test_bias_and_relu(session: Session) -> None:
    a, b, bias = integers(2, 48, 32), integers(2, 32, 40), integers(1, 1, 40)
    program = session.program()
    g = program.graph
    c = g.bias(input=g.matmul(program.input(a), program.input(b)), bias=program.input(bias))
    program.output(g.relu(c), np.float16)
    check_exact(program.run()[0], np.maximum(wide(a) @ wide(b) + wide(bias), 0))


def test_transposed_operands_and_a_repeated_batch(session: Session) -> None:
    a, b = integers(3, 24, 16, dtype=ml_dtypes.bfloat16), integers(1, 16, 32, dtype=ml_dtypes.bfloat16)
    residual = integers(3, 24, 32, dtype=np.float32)
    program = session.program()
    g = program.graph
    left = program.input(a, stride=[24 * 16, 1, 24])
    right = program.input(b, stride=[16 * 32, 1, 16])
    c = g.add(g.scale(g.matmul(left, right), program.scalar(0.5, rank=3)), program.input(residual))
    program.output(c, np.float32)
    check_exact(program.run()[0], (wide(a) @ wide(b)) * 0.5 + residual)


def test_gelu_and_its_gradient(session: Session) -> None:
    """y = gelu(x w), and dy through gelu's derivative at x w, in one graph each."""
    x, w, dy = normal(1, 32, 64), normal(1, 64, 48, scale=0.1), normal(1, 32, 48)
    forward = session.program()
    g = forward.graph
    product = g.matmul(forward.input(x), forward.input(w))
    forward.output(product, np.float32)
    forward.output(g.gelu_approx_tanh(product), np.float16)
    found, y = forward.run()
    z = wide(x) @ wide(w)
    inner = np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))
    check_close(found, z, 2e-3)
    check_close(y, 0.5 * z * (1 + inner), 3e-3)
    backward = session.program()
    g = backward.graph
    gradient = g.gelu_approx_tanh_backward(loss=backward.input(dy), input=backward.input(found))
    backward.output(gradient, np.float32)
    slope = 0.5 * (1 + inner) + 0.5 * z * (1 - inner**2) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * z**2)
    check_close(backward.run()[0], wide(dy) * slope, 5e-3)


def test_gated_linear_unit(session: Session) -> None:
    """swish(x v) * (x w)"""
    x, v, w = normal(1, 32, 32), normal(1, 32, 32, scale=0.2), normal(1, 32, 32, scale=0.2)
    program = session.program()
    g = program.graph
    x_of = program.input(x)
    gate, value = g.matmul(x_of, program.input(v)), g.matmul(x_of, program.input(w))
    program.output(g.mul(g.swish(gate), value), np.float16)
    z = wide(x) @ wide(v)
    check_close(program.run()[0], z / (1 + np.exp(-z)) * (wide(x) @ wide(w)), 4e-3)


def test_fp8_with_scales_and_amax(session: Session) -> None:
    e4m3 = ml_dtypes.float8_e4m3fn
    a, b = integers(1, 32, 64, dtype=e4m3), integers(1, 64, 32, dtype=e4m3)
    program = session.program()
    g = program.graph
    c = g.matmul(program.input(a), program.input(b, stride=[64 * 32, 1, 64]))
    scales = [program.input(np.full((1, 1, 1), value, np.float32)) for value in (0.5, 0.25)]
    c = g.mul(g.mul(c, scales[0]), scales[1])
    amax = g.reduction(c, mode=cudnn.reduction_mode.AMAX)
    program.output(c, np.float16)
    program.output(amax, np.float32, dim=[1, 1, 1], stride=[1, 1, 1])
    found, largest = program.run()
    expected = wide(a) @ wide(b) / 8
    check_exact(found, expected)
    check_exact(largest, np.abs(expected).max(keepdims=True))


def test_integers_are_converted_on_the_way(session: Session) -> None:
    """int8 weights are cast and scaled by channel before the product."""
    a, b, scale = integers(1, 32, 64), integers(1, 64, 32, dtype=np.int8, low=-9, high=9), integers(1, 1, 32, low=1)
    program = session.program()
    g = program.graph
    cast = g.identity(input=program.input(b), compute_data_type=DT.FLOAT)
    cast.set_data_type(DT.HALF)
    program.output(g.mul(g.matmul(program.input(a), cast), program.input(scale)), np.float32)
    check_exact(program.run()[0], wide(a) @ wide(b) * wide(scale))


def test_a_bias_gradient(session: Session) -> None:
    """The product's output and its sum over the rows."""
    a, b = integers(2, 32, 32), integers(2, 32, 48)
    program = session.program()
    g = program.graph
    c = g.matmul(program.input(a), program.input(b))
    program.output(c, np.float16)
    total = g.reduction(c, mode=cudnn.reduction_mode.ADD)
    program.output(total, np.float32, dim=[1, 1, 48], stride=[48, 48, 1])
    found, sums = program.run()
    expected = wide(a) @ wide(b)
    check_exact(found, expected)
    check_exact(sums, expected.sum((0, 1), keepdims=True))


def test_experts(session: Session) -> None:
    """Consecutive tokens go to one expert each, from its first token on; one expert has none."""
    tokens, weights = integers(1, 96, 32, dtype=ml_dtypes.bfloat16), integers(4, 32, 48, dtype=ml_dtypes.bfloat16)
    first = np.array([0, 40, 40, 70], np.int32).reshape(4, 1, 1)
    program = session.program()
    y = program.graph.moe_grouped_matmul(
        token=program.input(tokens),
        weight=program.input(weights, stride=[32 * 48, 1, 32]),
        first_token_offset=program.input(first),
        mode=cudnn.moe_grouped_matmul_mode.NONE,
    )
    program.output(y, ml_dtypes.bfloat16)
    bounds = [*first.ravel(), 96]
    expected = np.concatenate(
        [wide(tokens[0, low:high]) @ wide(w) for low, high, w in zip(bounds[:-1], bounds[1:], weights, strict=True)]
    )
    check_close(program.run()[0][0], expected, 2**-8)


@pytest.mark.skipif(VERSION < (1, 24), reason="this wheel was built for a cuDNN without them")
def test_gradients_of_experts(session: Session) -> None:
    """The weights' gradients: for each expert, its tokens' product with what comes back."""
    dtype = ml_dtypes.bfloat16
    tokens, dy = integers(1, 96, 32, dtype=dtype), integers(1, 96, 48, dtype=dtype)
    first = np.array([0, 40, 40, 70], np.int32).reshape(4, 1, 1)
    program = session.program()
    dw = program.graph.moe_grouped_matmul_bwd(
        doutput=program.input(dy), token=program.input(tokens), first_token_offset=program.input(first)
    )
    program.output(dw, np.float32)
    bounds = [*first.ravel(), 96]
    expected = np.stack([wide(tokens[0, low:high]).T @ wide(dy[0, low:high]) for low, high in pairwise(bounds)])
    check_exact(program.run()[0], expected)
