"""Derivatives of pointwise operations against differences of the reference, for every mode that has one."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.node_writer import NodeWriter
from lowdnn.ops.base import inputs_of
from lowdnn.ops.derivative import depend_on, gradient_through
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation, input_ports, is_backward, is_predicate, takes_alpha
from lowdnn.ops.tensor import Tensor
from lowdnn.status import NotSupportedError
from tests.support.data import fresh_seed
from tests.support.errors import raises

F64 = DataType.DOUBLE
M = PointwiseMode
DIMS = (3, 40)
Array = NDArray[np.float64]
#: Modes that do not change between steps, or have no derivative.
STEPS = [mode for mode in M if is_predicate(mode) or mode in (M.CEIL, M.FLOOR, M.GEN_INDEX)]
WITHOUT = [mode for mode in M if is_backward(mode) or mode in (M.MOD, M.FLOOR_MOD)]
WITH = [mode for mode in M if mode not in (*STEPS, *WITHOUT)]


def evaluated(operations: tuple[PointwiseOperation, ...], values: dict[int, Array], wanted: Tensor) -> Array:
    known = dict(values)
    for op in operations:
        tensors = inputs_of(op)
        constants = {t.uid: np.full(t.dims, t.constant_value) for t in tensors.values() if t.constant_value is not None}
        (result,) = op.reference({port: (known | constants)[t.uid] for port, t in tensors.items()}).values()
        known[op.output.uid] = result
    return known[wanted.uid]


def check(writer: NodeWriter, x: Tensor, y: Tensor, values: dict[int, Array], context: str) -> None:
    """dx against the symmetric difference of the sum of dy * y."""
    operations = tuple(op for op in writer.operations if isinstance(op, PointwiseOperation))
    dy = writer.tensor(DIMS, F64, is_virtual=True)
    values[dy.uid] = np.random.default_rng(1).standard_normal(DIMS)
    added, dx = gradient_through("x", operations, x, y, dy, count(1000).__next__)
    found = evaluated((*operations, *added), values, dx)
    step = 1e-6
    above, below = (evaluated(operations, values | {x.uid: values[x.uid] + sign * step}, y) for sign in (1.0, -1.0))
    expected = values[dy.uid] * (above - below) / (2 * step)
    np.testing.assert_allclose(np.broadcast_to(found, DIMS), expected, 1e-5, 1e-6, err_msg=context)


@pytest.mark.parametrize("mode", WITH, ids=lambda mode: mode.name)
def test_each_operand(mode: PointwiseMode) -> None:
    rng = np.random.default_rng(seed := fresh_seed())
    arithmetic = Pointwise(
        mode,
        F64,
        relu_lower_clip=-0.5,
        relu_upper_clip=1.0,
        relu_lower_clip_slope=0.25,
        elu_alpha=0.7,
        softplus_beta=1.5,
        swish_beta=0.8,
    )
    for port in input_ports(mode):
        if port == "t":
            continue
        writer = NodeWriter()
        tensors = {name: writer.tensor(DIMS, F64) for name in input_ports(mode)}
        alphas = {"alpha1": 0.75, "alpha2": 1.25} if takes_alpha(mode) else {}
        y = writer.pointwise(arithmetic, *tensors.values(), virtual=F64, **_used(alphas, tensors))
        values = {tensor.uid: 0.2 + rng.random(DIMS) for tensor in tensors.values()}
        if mode not in (M.LOG, M.SQRT, M.RSQRT, M.POW):
            values = {uid: np.where(rng.random(DIMS) < 0.5, drawn, -drawn) for uid, drawn in values.items()}
        if "t" in tensors:
            values[tensors["t"].uid] = (rng.random(DIMS) < 0.5).astype(np.float64)
        check(writer, tensors[port], y, values, f"seed {seed}, {mode.name} by {port}")


def _used(alphas: dict[str, float], tensors: dict[str, Tensor]) -> dict[str, float]:
    return {name: value for name, value in alphas.items() if name == "alpha1" or "b" in tensors}


def test_random_chains() -> None:
    """Operands are read several times, on several ways; steps on the way have no share."""
    smooth = [mode for mode in WITH if mode not in (M.LOG, M.SQRT, M.RSQRT, M.POW, M.DIV, M.RECIPROCAL, M.TAN, M.ATAN2)]
    rng = np.random.default_rng(seed := fresh_seed())
    for number in range(40):
        writer = NodeWriter()
        x, other = writer.tensor(DIMS, F64), writer.tensor(DIMS, F64)
        made = [x, other]
        for _ in range(int(rng.integers(1, 7))):
            mode = smooth[int(rng.integers(len(smooth)))]
            operands = [made[int(rng.integers(len(made)))] for _ in input_ports(mode)]
            made.append(writer.pointwise(Pointwise(mode, F64), *operands, virtual=F64))
        made.append(writer.pointwise(Pointwise(M.ADD, F64), made[-1], x, virtual=F64))
        values = {tensor.uid: rng.standard_normal(DIMS) / 2 for tensor in (x, other)}
        check(writer, x, made[-1], values, f"seed {seed}, chain {number}")


@pytest.mark.parametrize("mode", STEPS, ids=lambda mode: mode.name)
def test_steps_have_no_share(mode: PointwiseMode) -> None:
    writer = NodeWriter()
    x = writer.tensor(DIMS, F64)
    step = writer.pointwise(Pointwise(mode, F64, axis=0), *[x for _ in input_ports(mode)], virtual=F64)
    y = writer.pointwise(Pointwise(M.MUL, F64), step, writer.tensor(DIMS, F64), virtual=F64)
    dy = writer.tensor(DIMS, F64, is_virtual=True)
    assert depend_on(x, writer.operations) == {x.uid}
    added, dx = gradient_through("x", writer.operations, x, y, dy, count(1000).__next__)
    assert not evaluated(added, {}, dx).any()


@pytest.mark.parametrize("mode", WITHOUT, ids=lambda mode: mode.name)
def test_modes_without_a_derivative(mode: PointwiseMode) -> None:
    writer = NodeWriter()
    x = writer.tensor(DIMS, F64)
    y = writer.pointwise(Pointwise(mode, F64), *[x for _ in input_ports(mode)], virtual=F64)
    with raises(NotSupportedError, "here", expected="operations with a pointwise derivative", got=mode.name):
        gradient_through("here", writer.operations, x, y, y, count(1000).__next__)


def test_sums_and_masks_pass_the_gradient_on() -> None:
    """A score near minus infinity has no gradient anyway, if that is said; another constant does not count."""
    writer = NodeWriter()
    x, bias, t = (writer.tensor(DIMS, kind) for kind in (F64, F64, DataType.BOOLEAN))
    total = writer.pointwise(Pointwise(M.ADD, F64), bias, x, virtual=F64)
    dy = writer.tensor(DIMS, F64, is_virtual=True)
    for value, operations in ((-np.inf, 0), (-1e9, 0), (-1e3, 1)):
        masked = NodeWriter(first_uid=100)
        number = masked.constant(2, F64, value)
        y = masked.pointwise(Pointwise(M.BINARY_SELECT, F64), total, number, t, virtual=F64)
        chain = (*writer.operations, *masked.operations)
        added, dx = gradient_through("x", chain, x, y, dy, count(1000).__next__, -1e9)
        assert (len(added), dx.uid == dy.uid) == (operations, operations == 0)
