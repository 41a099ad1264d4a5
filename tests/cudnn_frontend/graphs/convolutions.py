"""Convolutions and their gradients, with what is fused to them."""

from __future__ import annotations

from itertools import product as index_space

import numpy as np

from tests.cudnn_frontend.data import Array, check_close, check_exact, integers, normal, wide
from tests.cudnn_frontend.program import Session


def windows(x: Array, w_shape: tuple[int, ...], padding: list[int], stride: list[int], dilation: list[int]) -> Array:
    """x[n, c, *pixels] as [n, c, *outputs, *taps]."""
    spatial = len(padding)
    padded = np.pad(x, [(0, 0), (0, 0), *((pad, pad) for pad in padding)])
    taps = w_shape[2:]
    out = [(padded.shape[2 + i] - dilation[i] * (taps[i] - 1) - 1) // stride[i] + 1 for i in range(spatial)]
    found = np.zeros((*x.shape[:2], *out, *taps))
    for tap in index_space(*map(range, taps)):
        at = tuple(
            slice(tap[i] * dilation[i], tap[i] * dilation[i] + stride[i] * (out[i] - 1) + 1, stride[i])
            for i in range(spatial)
        )
        found[(..., *tap)] = padded[(slice(None), slice(None), *at)]
    return found


def convolved(x: Array, w: Array, padding: list[int], stride: list[int], dilation: list[int]) -> Array:
    """y[n, k, *outputs] with groups as the channels of x and w say."""
    groups, spatial = x.shape[1] // w.shape[1], len(padding)
    letters = "xyz"[:spatial], "uvw"[:spatial]
    form = f"nc{letters[0]}{letters[1]},kc{letters[1]}->nk{letters[0]}"
    parts = [
        np.einsum(form, windows(one, w.shape, padding, stride, dilation), wide(filters), optimize=True)
        for one, filters in zip(np.split(wide(x), groups, 1), np.split(w, groups, 0), strict=True)
    ]
    return np.concatenate(parts, 1)


def gradients(x: Array, w: Array, dy: Array, padding: list[int], stride: list[int]) -> tuple[Array, Array]:
    """(dx, dw) of a 2D convolution without dilation or groups."""
    unfolded = windows(wide(x), w.shape, padding, stride, [1, 1])
    dw = np.einsum("nchwrs,nkhw->kcrs", unfolded, wide(dy), optimize=True)
    spread = np.einsum("nkhw,kcrs->nchwrs", wide(dy), wide(w), optimize=True)
    height, width = x.shape[2] + 2 * padding[0], x.shape[3] + 2 * padding[1]
    dx = np.zeros((*x.shape[:2], height, width))
    for r, s in index_space(range(w.shape[2]), range(w.shape[3])):
        rows = slice(r, r + stride[0] * (dy.shape[2] - 1) + 1, stride[0])
        columns = slice(s, s + stride[1] * (dy.shape[3] - 1) + 1, stride[1])
        dx[:, :, rows, columns] += spread[..., r, s]
    return dx[:, :, padding[0] : height - padding[0], padding[1] : width - padding[1]], dw


def test_bias_and_relu(session: Session) -> None:
    x, w, bias = integers(2, 16, 9, 8), integers(32, 16, 3, 3), integers(1, 32, 1, 1)
    program = session.program()
    g = program.graph
    y = g.conv_fprop(
        image=program.input(x, channels_last=True),
        weight=program.input(w, channels_last=True),
        padding=[1, 1],
        stride=[2, 1],
        dilation=[1, 2],
    )
    y = g.relu(g.bias(input=y, bias=program.input(bias, channels_last=True)))
    program.output(y, np.float16)
    expected = convolved(x, w, [1, 1], [2, 1], [1, 2]) + bias
    check_exact(program.run()[0], np.maximum(expected, 0))


def test_scale_bias_add_and_clipped_relu(session: Session) -> None:
    """Folded batch norm and a residual: relu(y * scale + bias + z), clipped at 6."""
    x, w = integers(1, 32, 6, 6), integers(16, 32, 1, 1)
    scale, bias, z = integers(1, 16, 1, 1), integers(1, 16, 1, 1), integers(1, 16, 6, 6)
    program = session.program()
    g = program.graph
    y = g.conv_fprop(
        program.input(x, channels_last=True),
        program.input(w, channels_last=True),
        padding=[0, 0],
        stride=[1, 1],
        dilation=[1, 1],
    )
    y = g.mul(y, program.input(scale, channels_last=True))
    y = g.add(g.bias(input=y, bias=program.input(bias, channels_last=True)), program.input(z, channels_last=True))
    program.output(g.relu(y, lower_clip=0.0, upper_clip=6.0), np.float16)
    expected = convolved(x, w, [0, 0], [1, 1], [1, 1]) * wide(scale) + bias + z
    check_exact(program.run()[0], np.clip(expected, 0, 6))


def test_statistics_of_channels(session: Session) -> None:
    """relu(x * scale + bias) is convolved; the sums and sums of squares of the output come with it."""
    x, w = integers(2, 16, 6, 6), integers(32, 16, 3, 3, low=-1, high=2)
    scale, bias = integers(1, 16, 1, 1, low=1, high=3), integers(1, 16, 1, 1)
    program = session.program()
    g = program.graph
    scaled = g.scale(input=program.input(x, channels_last=True), scale=program.input(scale, channels_last=True))
    prepared = g.relu(g.bias(input=scaled, bias=program.input(bias, channels_last=True)))
    y = g.conv_fprop(prepared, program.input(w, channels_last=True), padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    total, squares = g.genstats(input=y)
    program.output(y, np.float16)
    program.output(total, np.float32)
    program.output(squares, np.float32)
    found, sums, sums_of_squares = program.run()
    expected = convolved(np.maximum(wide(x) * wide(scale) + bias, 0), w, [1, 1], [1, 1], [1, 1])
    check_exact(found, expected)
    check_exact(sums, expected.sum((0, 2, 3), keepdims=True))
    check_close(sums_of_squares, (expected**2).sum((0, 2, 3), keepdims=True), 1e-6)


def test_groups(session: Session) -> None:
    x, w = integers(2, 32, 7, 7), integers(32, 8, 3, 3)
    program = session.program()
    y = program.graph.conv_fprop(
        program.input(x, channels_last=True),
        program.input(w, channels_last=True),
        pre_padding=[1, 0],
        post_padding=[1, 0],
        stride=[1, 1],
        dilation=[1, 1],
    )
    program.output(y, np.float32)
    check_exact(program.run()[0], convolved(x, w, [1, 0], [1, 1], [1, 1]))


def test_three_dimensions(session: Session) -> None:
    x, w = integers(1, 16, 4, 5, 6), integers(16, 16, 3, 1, 3)
    program = session.program()
    y = program.graph.conv_fprop(
        program.input(x, channels_last=True),
        program.input(w, channels_last=True),
        padding=[1, 0, 1],
        stride=[1, 2, 1],
        dilation=[1, 1, 1],
    )
    program.output(y, np.float16)
    check_exact(program.run()[0], convolved(x, w, [1, 0, 1], [1, 2, 1], [1, 1, 1]))


def test_gradient_of_the_data(session: Session) -> None:
    """The gradient passes relu's at the forward pass's input."""
    x, w, dy = integers(2, 16, 8, 8), integers(32, 16, 3, 3), integers(2, 32, 4, 4)
    program = session.program()
    g = program.graph
    dx = g.conv_dgrad(
        loss=program.input(dy, channels_last=True),
        filter=program.input(w, channels_last=True),
        padding=[1, 1],
        stride=[2, 2],
        dilation=[1, 1],
    )
    dx.set_dim([2, 16, 8, 8])
    dx = g.relu_backward(loss=dx, input=program.input(x, channels_last=True))
    program.output(dx, np.float16, dim=[2, 16, 8, 8], stride=[1024, 1, 128, 16])
    expected, _ = gradients(x, w, dy, [1, 1], [2, 2])
    check_exact(program.run()[0], np.where(x > 0, expected, 0))


def test_gradient_of_the_filter(session: Session) -> None:
    """The image is scaled, shifted and rectified before the convolution."""
    x, dy = integers(2, 16, 8, 8), integers(2, 32, 8, 8, low=-1, high=2)
    scale, bias = integers(1, 16, 1, 1, low=1, high=3), integers(1, 16, 1, 1)
    program = session.program()
    g = program.graph
    scaled = g.scale(input=program.input(x, channels_last=True), scale=program.input(scale, channels_last=True))
    prepared = g.relu(g.bias(input=scaled, bias=program.input(bias, channels_last=True)))
    dw = g.conv_wgrad(
        image=prepared, loss=program.input(dy, channels_last=True), padding=[1, 1], stride=[1, 1], dilation=[1, 1]
    )
    program.output(dw, np.float16, dim=[32, 16, 3, 3], stride=[144, 1, 48, 16])
    _, expected = gradients(np.maximum(wide(x) * wide(scale) + bias, 0), np.empty((32, 16, 3, 3)), dy, [1, 1], [1, 1])
    check_exact(program.run()[0], expected.astype(np.float16).astype(np.float64))


def test_single_precision(session: Session) -> None:
    """NCHW in memory, fp32: no tensor cores unless the heuristics take TF32, which integers do not show."""
    x, w = integers(2, 5, 8, 8, dtype=np.float32), integers(7, 5, 3, 3, dtype=np.float32)
    program = session.program()
    y = program.graph.conv_fprop(program.input(x), program.input(w), padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    program.output(y, np.float32)
    check_exact(program.run()[0], convolved(x, w, [1, 1], [1, 1], [1, 1]))


def test_swish(session: Session) -> None:
    x, w = normal(1, 16, 6, 6), normal(16, 16, 3, 3, scale=0.1)
    program = session.program()
    g = program.graph
    y = g.conv_fprop(
        program.input(x, channels_last=True),
        program.input(w, channels_last=True),
        padding=[1, 1],
        stride=[1, 1],
        dilation=[1, 1],
    )
    program.output(g.swish(y), np.float16)
    z = convolved(x, w, [1, 1], [1, 1], [1, 1])
    check_close(program.run()[0], z / (1 + np.exp(-z)), 3e-3)
