from __future__ import annotations

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.backend import Handle, execute
from lowdnn.cases import parse_case
from lowdnn.engines.band_matrix.band_matrix import BandMatrix
from lowdnn.enums import AttributeName, AttributeType, DescriptorType
from lowdnn.runtime.runtime import Runtime
from tests.support.builders import matmul_graph
from tests.support.descriptors import best_config, made, plan_of, tensor, variant_pack
from tests.support.running import check_exact
from tests.support.runtime import download, upload

ENGINE = BandMatrix()
N, T = AttributeName, AttributeType


@pytest.mark.parametrize("dims", ["5x300", "2x40x40"])
@pytest.mark.parametrize("op", ["expand", "contract"])
def test_bands_within_and_beyond_the_matrix(device: Runtime, op: str, dims: str) -> None:
    axis = dims.count("x")
    for lower, upper in ((0, 0), (3, 1), (7, 310)):
        line = f"transform op={op} dims={dims} axis={axis} lower={lower} upper={upper} pad=3 dtype=bf16"
        check_exact(device, ENGINE, parse_case(line).graph())


def test_other_operations_are_refused() -> None:
    refusal = ENGINE.refuse(matmul_graph(), SM_90A)
    assert refusal is not None
    assert refusal.reason == "operations: expected one band-matrix operation, got MatmulOperation"


def test_descriptors(handle: Handle) -> None:
    """A band of three diagonals is expanded and contracted again."""
    band, matrix, again = (tensor(uid, dims, (dims[1], 1)) for uid, dims in ((1, (4, 3)), (2, (4, 5)), (3, (4, 3))))
    expand = made(
        DescriptorType.OPERATION_EXPAND_BAND_MATRIX,
        (N.OPERATION_EXPAND_BAND_MATRIX_XDESC, T.BACKEND_DESCRIPTOR, band),
        (N.OPERATION_EXPAND_BAND_MATRIX_YDESC, T.BACKEND_DESCRIPTOR, matrix),
        (N.OPERATION_EXPAND_BAND_MATRIX_LOWER_BANDWIDTH, T.INT64, 1),
        (N.OPERATION_EXPAND_BAND_MATRIX_UPPER_BANDWIDTH, T.INT64, 1),
        (N.OPERATION_EXPAND_BAND_MATRIX_AXIS, T.INT64, 1),
        (N.OPERATION_EXPAND_BAND_MATRIX_PAD_VALUE, T.DOUBLE, -1.0),
    )
    contract = made(
        DescriptorType.OPERATION_CONTRACT_BAND_MATRIX,
        (N.OPERATION_CONTRACT_BAND_MATRIX_XDESC, T.BACKEND_DESCRIPTOR, matrix),
        (N.OPERATION_CONTRACT_BAND_MATRIX_YDESC, T.BACKEND_DESCRIPTOR, again),
        (N.OPERATION_CONTRACT_BAND_MATRIX_LOWER_BANDWIDTH, T.INT64, 1),
        (N.OPERATION_CONTRACT_BAND_MATRIX_UPPER_BANDWIDTH, T.INT64, 1),
        (N.OPERATION_CONTRACT_BAND_MATRIX_AXIS, T.INT64, 1),
    )
    graph = made(
        DescriptorType.OPERATIONGRAPH,
        (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, (expand, contract)),
        (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
    )
    plan = plan_of(best_config(graph), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
    values = np.arange(1, 13, dtype=np.float32)
    arrays = {1: values, 2: np.zeros(20, np.float32), 3: np.zeros(12, np.float32)}
    buffers = {uid: upload(handle.runtime, array) for uid, array in arrays.items()}
    execute(handle, plan, variant_pack({uid: buffer.address for uid, buffer in buffers.items()}))
    assert download(buffers[2], np.float32).reshape(4, 5).tolist() == [
        [2, 3, -1, -1, -1],
        [4, 5, 6, -1, -1],
        [-1, 7, 8, 9, -1],
        [-1, -1, 10, 11, 12],
    ]
    assert download(buffers[3], np.float32).tolist() == [0, *range(2, 13)]
