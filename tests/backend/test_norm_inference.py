"""Batch normalisation by given statistics, through descriptors of normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowdnn.backend import Descriptor, Handle, create, execute
from lowdnn.enums import AttributeName, AttributeType, DescriptorType, NormFwdPhase, NormMode
from lowdnn.status import BadParamError, ShapeMismatchError
from tests.support.descriptors import best_config, made, plan_of, tensor, variant_pack
from tests.support.errors import raises
from tests.support.runtime import download, upload

N, T, D = AttributeName, AttributeType, DescriptorType
DIMS, CHANNELS = (2, 6, 3, 4), (1, 6, 1, 1)
STATISTICS = {"MEAN": 2, "INV_VARIANCE": 3}
PARAMETERS = {"SCALE": 4, "BIAS": 5}
Y = 9


def operation(
    names: dict[str, int], *more: tuple[Any, ...], phase: NormFwdPhase = NormFwdPhase.INFERENCE
) -> Descriptor:
    """An operation, not finalized, with the tensors ``names`` of one element for each channel."""
    descriptor = create(D.OPERATION_NORM_FORWARD)
    tensors = [(f"{name}_DESC", uid, CHANNELS) for name, uid in names.items()] + [
        ("XDESC", 1, DIMS),
        ("YDESC", Y, DIMS),
    ]
    attributes: list[tuple[Any, ...]] = [
        (N.OPERATION_NORM_FWD_MODE, T.NORM_MODE, NormMode.BATCH_NORM),
        (N.OPERATION_NORM_FWD_PHASE, T.NORM_FWD_PHASE, phase),
    ]
    for name, uid, dims in tensors:
        strides = tuple(int(np.prod(dims[axis + 1 :])) for axis in range(4))
        attributes.append((N[f"OPERATION_NORM_FWD_{name}"], T.BACKEND_DESCRIPTOR, tensor(uid, dims, strides)))
    for attribute in (*attributes, *more):
        descriptor.set_attribute(*attribute)
    return descriptor


def epsilon() -> Descriptor:
    return tensor(7, (1, 1, 1, 1), (1, 1, 1, 1), is_by_value=True)


@pytest.mark.parametrize("names", [STATISTICS, STATISTICS | PARAMETERS], ids=["statistics", "scale and bias"])
@pytest.mark.parametrize("has_epsilon", [False, True])
def test_inference(handle: Handle, names: dict[str, int], has_epsilon: bool) -> None:
    """A number for epsilon does not count: inv_variance has it."""
    more = [(N.OPERATION_NORM_FWD_EPSILON_DESC, T.BACKEND_DESCRIPTOR, epsilon())] if has_epsilon else []
    descriptor = operation(names, *more)
    descriptor.finalize()
    (mean,) = descriptor.get_attribute(N.OPERATION_NORM_FWD_MEAN_DESC, T.BACKEND_DESCRIPTOR)
    assert mean.value.uid == STATISTICS["MEAN"]
    assert descriptor.get_attribute(N.OPERATION_NORM_FWD_EXP_AVG_FACTOR_DESC, T.BACKEND_DESCRIPTOR) == []
    graph = made(
        D.OPERATIONGRAPH,
        (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, descriptor),
        (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
    )
    rng = np.random.default_rng()
    values = {1: rng.standard_normal(DIMS)} | {uid: rng.standard_normal(CHANNELS) for uid in names.values()}
    expected = (values[1] - values[2]) * values[3] * values.get(4, 1) + values.get(5, 0)
    buffers = {uid: upload(handle.runtime, value.astype(np.float32)) for uid, value in values.items()}
    buffers[Y] = upload(handle.runtime, np.full(DIMS, np.nan, np.float32))
    plan = plan_of(best_config(graph), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
    execute(handle, plan, variant_pack({uid: buffer.address for uid, buffer in buffers.items()}, 0))
    found = download(buffers[Y], np.float32).reshape(DIMS)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_what_is_refused() -> None:
    missing = "none for OPERATION_NORM_FWD_INV_VARIANCE_DESC"
    with raises(BadParamError, "OPERATION_NORM_FORWARD descriptor", expected="every required", got=missing):
        operation({"MEAN": 2}).finalize()
    running = (N.OPERATION_NORM_FWD_INPUT_RUNNING_MEAN_DESC, T.BACKEND_DESCRIPTOR, tensor(8, CHANNELS, (6, 1, 1, 1)))
    where = "OPERATION_NORM_FORWARD descriptor.OPERATION_NORM_FWD_INPUT_RUNNING_MEAN_DESC"
    with raises(BadParamError, where, expected="none for BatchNormInference", got="one that is set"):
        operation(STATISTICS, running).finalize()
    rows = (N.OPERATION_NORM_FWD_SCALE_DESC, T.BACKEND_DESCRIPTOR, tensor(4, (1, 6, 3, 1), (18, 3, 1, 1)))
    with raises(ShapeMismatchError, "norm_forward.scale.dims", expected="[1, 6, 1, 1]", got="[1, 6, 3, 1]"):
        operation(STATISTICS, rows).finalize()
    with raises(BadParamError, "OPERATION_NORM_FORWARD descriptor", expected="every", got="FWD_EPSILON_DESC"):
        operation(STATISTICS, phase=NormFwdPhase.TRAINING).finalize()
