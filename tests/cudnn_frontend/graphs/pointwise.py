"""Element-wise operations, reductions, and what moves elements."""

from __future__ import annotations

import cudnn
import ml_dtypes
import numpy as np
import pytest

from tests.cudnn_frontend.data import check_close, check_exact, integers, normal, wide
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
