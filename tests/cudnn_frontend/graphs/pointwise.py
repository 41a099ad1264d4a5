"""Element-wise operations, reductions, and what moves elements."""

from __future__ import annotations

import math

import cudnn
import ml_dtypes
import numpy as np
import pytest

from tests.cudnn_frontend.data import RNG, check_close, check_exact, integers, normal, wide
from tests.cudnn_frontend.program import DT, VERSION, Session


def test_a_chain(session: Session) -> None:
    """sqrt(|a|) * sigmoid(b) - exp(-a^2) / max(c, 1), with c repeated over the rows."""
    a, b, c = normal(4, 8, 16, dtype=np.float32), normal(4, 8, 16), normal(1, 1, 16, dtype=np.float32)
    program = session.program()
    g = program.graph
    a_of, b_of = program.input(a), program.input(b)
    left = g.mul(g.sqrt(g.abs(a_of)), g.sigmoid(b_of))
    right = g.div(g.exp(g.neg(g.mul(a_of, a_of))), g.max(program.input(c), program.scalar(1.0, rank=3)))
    program.output(g.sub(left, right), np.float32)
    x, y = wide(a), wide(b)
    expected = np.sqrt(np.abs(x)) / (1 + np.exp(-y)) - np.exp(-x * x) / np.maximum(c, 1)
    check_close(program.run()[0], expected, 1e-4)


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "softplus": lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def test_activations_and_their_gradients(session: Session) -> None:
    """Gradients against differences of the float64 function."""
    x, dy = normal(4, 8, 32, dtype=np.float32), normal(4, 8, 32, dtype=np.float32)
    x = np.where(np.abs(x) < 1e-2, np.float32(0.5), x)
    program = session.program()
    g = program.graph
    x_of, dy_of = program.input(x), program.input(dy)
    for name in ACTIVATIONS:
        program.output(getattr(g, name)(input=x_of), np.float32)
        program.output(getattr(g, f"{name}_backward")(loss=dy_of, input=x_of), np.float32)
    found = program.run()
    step = 1e-5
    for number, function in enumerate(ACTIVATIONS.values()):
        check_close(found[2 * number], function(wide(x)), 1e-4)
        slope = (function(wide(x) + step) - function(wide(x) - step)) / (2 * step)
        check_close(found[2 * number + 1], wide(dy) * slope, 1e-4)


def test_functions(session: Session) -> None:
    x = RNG.uniform(0.1, 2, (3, 5, 16)).astype(np.float32)
    functions = {
        "abs": np.abs, "ceil": np.ceil, "cos": np.cos, "exp": np.exp, "floor": np.floor, "log": np.log,
        "neg": np.negative, "reciprocal": np.reciprocal, "rsqrt": lambda a: 1 / np.sqrt(a), "sin": np.sin,
        "sqrt": np.sqrt, "tan": np.tan, "erf": np.vectorize(math.erf), "identity": np.positive,
    }  # fmt: skip
    pairs = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power, "mod": np.fmod}
    pairs |= {"max": np.maximum, "min": np.minimum, "add_square": lambda a, b: a + b * b}
    y = RNG.uniform(0.5, 2, (3, 1, 16)).astype(np.float32)
    program = session.program()
    g = program.graph
    x_of, y_of = program.input(x), program.input(y)
    for name in functions:
        program.output(getattr(g, name)(input=x_of), np.float32)
    for name in pairs:
        method = getattr(g, name)
        program.output(method(x_of, y_of), np.float32)
    expected = [function(wide(x)) for function in functions.values()]
    expected += [function(wide(x), wide(y)) for function in pairs.values()]
    for name, mine, true in zip((*functions, *pairs), program.run(), expected, strict=True):
        close = np.isclose(wide(mine), true, rtol=2e-4, atol=2e-5)
        assert close.mean() > 0.99 if name == "mod" else close.all(), name


def test_comparisons_and_logic(session: Session) -> None:
    a, b = integers(3, 4, 32, dtype=np.float32), integers(3, 4, 32, dtype=np.float32)
    program = session.program(compute_data_type=DT.FLOAT, intermediate_data_type=DT.BOOLEAN)
    g = program.graph
    a_of, b_of = program.input(a), program.input(b)
    compared = {
        name: getattr(g, f"cmp_{name}")(input=a_of, comparison=b_of) for name in ("eq", "neq", "gt", "ge", "lt", "le")
    }
    either = g.logical_or(compared["eq"], compared["gt"])
    both = g.logical_and(compared["neq"], g.logical_not(compared["le"]))
    for tensor in (*compared.values(), either, both):
        program.output(tensor, np.bool_)
    *found, found_either, found_both = program.run()
    expected = [a == b, a != b, a > b, a >= b, a < b, a <= b]
    for mine, true in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, true)
    np.testing.assert_array_equal(found_either, a >= b)
    np.testing.assert_array_equal(found_both, a > b)


def test_selection_by_index(session: Session) -> None:
    """Keeps what is on and below the diagonal."""
    a = integers(2, 24, 24, dtype=np.float32)
    program = session.program()
    g = program.graph
    a_of = program.input(a)
    rows, columns = g.gen_index(input=a_of, axis=1), g.gen_index(input=a_of, axis=2)
    for index in (rows, columns):
        index.set_data_type(DT.INT32)
    mask = g.cmp_ge(input=rows, comparison=columns, compute_data_type=DT.INT32)
    mask.set_data_type(DT.BOOLEAN)
    program.output(g.binary_select(input0=a_of, input1=program.scalar(-1.0, rank=3), mask=mask), np.float32)
    check_exact(program.run()[0], np.where(np.tri(24, dtype=bool), a, -1))


def test_reductions(session: Session) -> None:
    a = integers(4, 8, 32, dtype=np.float32)
    modes = {
        "ADD": a.sum((0, 2), keepdims=True),
        "MAX": a.max((0, 2), keepdims=True),
        "MIN": a.min((0, 2), keepdims=True),
        "AMAX": np.abs(a).max((0, 2), keepdims=True),
        "AVG": wide(a).mean((0, 2), keepdims=True),
        "NORM1": np.abs(a).sum((0, 2), keepdims=True),
    }
    for name, expected in modes.items():
        program = session.program()
        y = program.graph.reduction(program.input(a), mode=getattr(cudnn.reduction_mode, name))
        program.output(y, np.float32, dim=[1, 8, 1], stride=[8, 1, 1])
        check_close(program.run()[0], wide(expected), 1e-6)


@pytest.mark.skipif(VERSION < (1, 24), reason="this wheel was built for a cuDNN without transposes")
def test_moves(session: Session) -> None:
    """A slice is transposed and reshaped, then joined to another tensor."""
    a, b = integers(2, 8, 6), integers(2, 4, 8)
    program = session.program()
    g = program.graph
    cut = g.slice(program.input(a), [slice(0, 2), slice(1, 7, 2), slice(2, 6)])
    cut.set_data_type(DT.HALF)
    turned = g.transpose(cut, permutation=[0, 2, 1])
    turned.set_data_type(DT.HALF)
    program.output(turned, np.float16, dim=[2, 4, 3], stride=[12, 3, 1])
    check_exact(program.run()[0], wide(a[:, 1:7:2, 2:6].swapaxes(1, 2)))
    program = session.program()
    g = program.graph
    flat = g.reshape(program.input(b))
    program.output(flat, np.float16, dim=[8, 8], stride=[8, 1])
    check_exact(program.run()[0], wide(b.reshape(8, 8)))
    program = session.program()
    g = program.graph
    joined = g.concatenate(inputs=[program.input(a[:, :, :4].copy()), program.input(b[:, :, :4].copy())], axis=1)
    program.output(joined, np.float16, dim=[2, 12, 4], stride=[48, 4, 1])
    check_exact(program.run()[0], wide(np.concatenate([a[:, :, :4], b[:, :, :4]], 1)))


def test_products_of_block_scales(session: Session) -> None:
    """Both operands are in fp8 with a power of two for each 32 elements along K."""
    e4m3, e8m0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
    a, b = integers(1, 128, 128, dtype=e4m3), integers(1, 128, 128, dtype=e4m3)
    powers = [np.exp2(RNG.integers(-1, 2, dims)).astype(np.float64) for dims in ((1, 128, 4), (1, 4, 128))]
    program = session.program()
    g = program.graph

    def scaled(values: np.ndarray, strides: list[int], scale: np.ndarray, scale_strides: list[int], block: list[int]):
        tensor = g.tensor(dim=list(scale.shape), stride=scale_strides, data_type=DT.FP8_E8M0)
        flat = scale.reshape(-1) if scale_strides[-1] == 1 else scale.swapaxes(1, 2).reshape(-1)
        program.pack[tensor] = session.cudart.put(flat.astype(e8m0))
        return g.block_scale_dequantize(program.input(values, stride=strides), tensor, block_size=block)

    left = scaled(a, [128 * 128, 128, 1], powers[0], [512, 4, 1], [1, 32])
    right = scaled(b, [128 * 128, 1, 128], powers[1], [512, 1, 4], [32, 1])
    program.output(g.matmul(left, right), np.float32)
    expected = (wide(a) * powers[0].repeat(32, 2)) @ (wide(b) * powers[1].repeat(32, 1))
    check_exact(program.run()[0], expected)


def test_block_scales(session: Session) -> None:
    """Each 32 elements of a row are divided by a power of two; multiplied again, they are near what they were."""
    x = normal(1, 8, 64, dtype=np.float32)
    program = session.program()
    g = program.graph
    y, scales = g.block_scale_quantize(program.input(x), block_size=32, axis=2, transpose=False)
    program.output(y, ml_dtypes.float8_e4m3fn)
    scales.set_output(True).set_data_type(DT.FP8_E8M0)
    program.build()
    program.allocate()
    program.pack[scales] = session.cudart.put(np.full(16, 0xFF, np.uint8))
    assert scales.get_dim() == [1, 8, 2]
    program.graph.execute(program.pack, program.workspace(), handle=session.handle)
    powers = session.cudart.get(program.pack[scales], (1, 8, 2, 1), ml_dtypes.float8_e8m0fnu)
    again = (wide(program.results()[0]).reshape(1, 8, 2, 32) * wide(powers)).reshape(x.shape)
    check_close(again, wide(x), 7e-2)


@pytest.mark.skipif(VERSION < (1, 24), reason="this wheel has no rotary embeddings")
def test_rotary_embeddings(session: Session) -> None:
    """Both halves of each head turn by angles that grow with the position; the gradient turns back."""
    heads, length, size = 3, 16, 32
    x = normal(2, heads, length, size, dtype=np.float32)
    angles = (np.arange(length)[:, None] * 10.0 ** (-np.arange(size // 2) / 8)).astype(np.float32)
    table = np.concatenate([angles, angles], -1).reshape(length, 1, 1, size)
    left, right = wide(x[..., : size // 2]), wide(x[..., size // 2 :])
    cosine, sine = np.cos(wide(angles)), np.sin(wide(angles))
    for method, turn in (("rope", sine), ("rope_backward", -sine)):
        program = session.program()
        program.output(getattr(program.graph, method)(program.input(x), program.input(table)), np.float32)
        expected = np.concatenate([left * cosine - right * turn, right * cosine + left * turn], -1)
        check_close(program.run()[0], expected, 1e-5)
