"""Normalisations, forward and backward."""

from __future__ import annotations

from typing import Any

import cudnn
import ml_dtypes
import numpy as np
import pytest

from tests.cudnn_frontend.data import Array, check_close, normal, wide
from tests.cudnn_frontend.program import Program, Session

EPSILON, MOMENTUM = 1e-3, 0.1
TRAINING, INFERENCE = cudnn.norm_forward_phase.TRAINING, cudnn.norm_forward_phase.INFERENCE


def normalised(x: Array, axes: tuple[int, ...], centred: bool = True) -> tuple[Array, Array, Array]:
    """(x in units of its deviation, mean, inverse deviation) over the axes."""
    mean = x.mean(axes, keepdims=True) if centred else np.zeros_like(x.mean(axes, keepdims=True))
    inverse = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + EPSILON)
    return (x - mean) * inverse, mean, inverse


def gradient(
    dy: Array, unit: Array, scale: Array, inverse: Array, axes: tuple[int, ...], centred: bool = True
) -> Array:
    """dx of unit * scale + bias."""
    g = dy * scale
    dx = g - unit * (g * unit).mean(axes, keepdims=True)
    return inverse * (dx - g.mean(axes, keepdims=True) if centred else dx)


def stored(program: Program, tensors: Any, *dtypes: Any) -> list[Array]:
    for tensor, dtype in zip(tensors, dtypes, strict=True):
        program.output(tensor, dtype)
    return program.run()


@pytest.mark.parametrize(
    ("method", "dims", "axes", "tolerance"),
    [("layernorm", (6, 64, 1, 1), (1, 2, 3), 1e-4), ("instancenorm", (3, 8, 6, 6), (2, 3), 1e-3)],
)
def test_norms(session: Session, method: str, dims: tuple[int, ...], axes: tuple[int, ...], tolerance: float) -> None:
    """Each sample is normalised by itself, over all channels or in each one; ``tolerance``: of the mean."""
    x, dy = normal(*dims), normal(*dims)
    scale, bias = (normal(1, dims[1], 1, 1, dtype=np.float32) for _ in range(2))
    program = session.program()
    outputs = getattr(program.graph, method)(
        norm_forward_phase=TRAINING,
        input=program.input(x, channels_last=True),
        scale=program.input(scale, channels_last=True),
        bias=program.input(bias, channels_last=True),
        epsilon=program.scalar(EPSILON),
    )
    y, mean, inverse = stored(program, outputs, np.float16, np.float32, np.float32)
    unit, true_mean, true_inverse = normalised(wide(x), axes)
    check_close(y, unit * scale + bias, 2e-3)
    check_close(mean, true_mean, tolerance)
    check_close(inverse, true_inverse, 1e-4)
    program = session.program()
    outputs = getattr(program.graph, f"{method}_backward")(
        grad=program.input(dy, channels_last=True),
        input=program.input(x, channels_last=True),
        scale=program.input(scale, channels_last=True),
        mean=program.input(mean, channels_last=True),
        inv_variance=program.input(inverse, channels_last=True),
    )
    dx, dscale, dbias = stored(program, outputs, np.float16, np.float32, np.float32)
    check_close(dx, gradient(wide(dy), unit, scale, true_inverse, axes), 3e-3)
    check_close(dscale, (dy * unit).sum((0, 2, 3), keepdims=True), 1e-3)
    check_close(dbias, wide(dy).sum((0, 2, 3), keepdims=True), 1e-3)


def test_layer_norm_of_a_sum_with_gains_around_one(session: Session) -> None:
    """Inference: y = norm(a + b) * (1 + gamma) + bias, in bf16."""
    dtype = ml_dtypes.bfloat16
    a, b, gamma, bias = (normal(*dims, dtype=dtype) for dims in ((5, 96, 1, 1),) * 2 + ((1, 96, 1, 1),) * 2)
    program = session.program()
    g = program.graph
    scale = g.add(program.input(gamma, channels_last=True), program.scalar(1.0))
    scale.set_data_type(cudnn.data_type.BFLOAT16)
    y, mean, inverse = g.layernorm(
        norm_forward_phase=INFERENCE,
        input=g.add(program.input(a, channels_last=True), program.input(b, channels_last=True)),
        scale=scale,
        bias=program.input(bias, channels_last=True),
        epsilon=program.scalar(EPSILON),
    )
    assert mean is None
    assert inverse is None
    program.output(y, dtype)
    unit, _, _ = normalised(wide(a) + wide(b), (1, 2, 3))
    check_close(program.run()[0], unit * (1 + wide(gamma)) + wide(bias), 2e-2)


def test_rms_norm(session: Session) -> None:
    x, dy = normal(7, 128, 1, 1), normal(7, 128, 1, 1)
    scale, bias = normal(1, 128, 1, 1), normal(1, 128, 1, 1)
    program = session.program()
    outputs = program.graph.rmsnorm(
        norm_forward_phase=TRAINING,
        input=program.input(x, channels_last=True),
        scale=program.input(scale, channels_last=True),
        bias=program.input(bias, channels_last=True),
        epsilon=program.scalar(EPSILON),
    )
    y, inverse = stored(program, outputs, np.float16, np.float32)
    unit, _, true_inverse = normalised(wide(x), (1, 2, 3), centred=False)
    check_close(y, unit * wide(scale) + wide(bias), 2e-3)
    check_close(inverse, true_inverse, 1e-4)
    program = session.program()
    outputs = program.graph.rmsnorm_backward(
        grad=program.input(dy, channels_last=True),
        input=program.input(x, channels_last=True),
        scale=program.input(scale, channels_last=True),
        inv_variance=program.input(inverse),
        has_dbias=True,
    )
    dx, dscale, dbias = stored(program, outputs, np.float16, np.float32, np.float32)
    check_close(dx, gradient(wide(dy), unit, wide(scale), true_inverse, (1, 2, 3), centred=False), 3e-3)
    check_close(dscale, (dy * unit).sum(0, keepdims=True), 1e-3)
    check_close(dbias, wide(dy).sum(0, keepdims=True), 1e-3)


def test_batch_norm(session: Session) -> None:
    """Batch norm with running statistics and a ReLU behind it, and the gradients through both."""
    x, dy = normal(4, 16, 5, 5), normal(4, 16, 5, 5)
    scale, bias, running_mean, running_variance = (normal(1, 16, 1, 1, dtype=np.float32) for _ in range(4))
    running_variance = np.abs(running_variance)
    program = session.program()
    g = program.graph
    y, mean, inverse, next_mean, next_variance = g.batchnorm(
        input=program.input(x, channels_last=True),
        scale=program.input(scale, channels_last=True),
        bias=program.input(bias, channels_last=True),
        in_running_mean=program.input(running_mean, channels_last=True),
        in_running_var=program.input(running_variance, channels_last=True),
        epsilon=program.scalar(EPSILON),
        momentum=program.scalar(MOMENTUM),
    )
    tensors = (g.relu(y), mean, inverse, next_mean, next_variance)
    found = stored(program, tensors, np.float16, *[np.float32] * 4)
    axes, count = (0, 2, 3), 100
    unit, true_mean, true_inverse = normalised(wide(x), axes)
    variance = wide(x).var(axes, keepdims=True) * count / (count - 1)
    check_close(found[0], np.maximum(unit * scale + bias, 0), 2e-3)
    for mine, expected in zip(
        found[1:],
        (
            true_mean,
            true_inverse,
            (1 - MOMENTUM) * running_mean + MOMENTUM * true_mean,
            (1 - MOMENTUM) * running_variance + MOMENTUM * variance,
        ),
        strict=True,
    ):
        check_close(mine, expected, 1e-4)
    program = session.program()
    g = program.graph
    outputs = g.batchnorm_backward(
        grad=g.relu_backward(
            loss=program.input(dy, channels_last=True), input=program.input(found[0], channels_last=True)
        ),
        input=program.input(x, channels_last=True),
        scale=program.input(scale, channels_last=True),
        mean=program.input(found[1], channels_last=True),
        inv_variance=program.input(found[2], channels_last=True),
    )
    dx, dscale, dbias = stored(program, outputs, np.float16, np.float32, np.float32)
    through = np.where(found[0] > 0, wide(dy), 0)
    check_close(dx, gradient(through, unit, scale, true_inverse, axes), 3e-3)
    check_close(dscale, (through * unit).sum(axes, keepdims=True), 1e-3)
    check_close(dbias, through.sum(axes, keepdims=True), 1e-3)


def test_batch_norm_of_inference(session: Session) -> None:
    x = normal(2, 16, 4, 4)
    mean, inverse, scale, bias = (normal(1, 16, 1, 1, dtype=np.float32) for _ in range(4))
    program = session.program()
    y = program.graph.batchnorm_inference(
        input=program.input(x, channels_last=True),
        mean=program.input(mean, channels_last=True),
        inv_variance=program.input(inverse, channels_last=True),
        scale=program.input(scale, channels_last=True),
        bias=program.input(bias, channels_last=True),
    )
    program.output(y, np.float16)
    check_close(program.run()[0], (wide(x) - mean) * inverse * scale + bias, 2e-3)


def test_adaptive_layer_norm(session: Session) -> None:
    """Each sequence has its own scale and bias."""
    x, dy = normal(3, 5, 64), normal(3, 5, 64)
    scale, bias = normal(3, 1, 64), normal(3, 1, 64)
    program = session.program()
    outputs = program.graph.adalayernorm(
        norm_forward_phase=TRAINING,
        input=program.input(x),
        scale=program.input(scale),
        bias=program.input(bias),
        epsilon=program.scalar(EPSILON, rank=3),
    )
    y, mean, inverse = stored(program, outputs, np.float16, np.float32, np.float32)
    unit, _, true_inverse = normalised(wide(x), (2,))
    check_close(y, unit * wide(scale) + wide(bias), 2e-3)
    program = session.program()
    outputs = program.graph.adalayernorm_backward(
        grad=program.input(dy),
        input=program.input(x),
        scale=program.input(scale),
        mean=program.input(mean),
        inv_variance=program.input(inverse),
    )
    dx, dscale, dbias = stored(program, outputs, np.float16, np.float32, np.float32)
    check_close(dx, gradient(wide(dy), unit, wide(scale), true_inverse, (2,)), 3e-3)
    check_close(dscale, (dy * unit).sum(1, keepdims=True), 1e-3)
    check_close(dbias, wide(dy).sum(1, keepdims=True), 1e-3)
