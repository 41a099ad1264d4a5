"""``bit_mask``: eight elements of a mask in a byte, in the order of memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lowdnn.arch.specs import SM_90A
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.bit_mask.bit_mask import BitMask
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.bit_mask import PackBits, UnpackBits, bits_of
from lowdnn.ops.tensor import Tensor, channels_last_strides, packed_strides
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError, ShapeMismatchError, UnsupportedDataTypeError
from tests.support.data import fresh_seed
from tests.support.errors import raises
from tests.support.pairs import paired
from tests.support.running import POLICIES, run_plan

ENGINE = BitMask()
#: (2, 3, 5, 7) has 210 elements, 26 bytes and two bits.
DIMS = (2, 3, 5, 7)


def mask_of(dims: tuple[int, ...], *, is_nhwc: bool = False, alignment_bytes: int = 16) -> Tensor:
    strides = channels_last_strides(dims) if is_nhwc else packed_strides(dims)
    return Tensor(1, DataType.BOOLEAN, dims, strides, alignment_bytes, name="mask")


def bits_tensor(mask: Tensor) -> Tensor:
    return replace(bits_of(mask), uid=2, name="bits")


@paired(
    ("dims", [DIMS, (64, 9), (1,), (8,), (0, 3)]),
    ("alignment_bytes", [1, 16]),
    ("scheduled", POLICIES),
    fixtures=["scheduled"],
)
def test_bits_and_elements(scheduled: Runtime, dims: tuple[int, ...], alignment_bytes: int) -> None:
    mask = mask_of(dims, is_nhwc=len(dims) == 4, alignment_bytes=alignment_bytes)
    elements = np.random.default_rng(fresh_seed()).integers(0, 2, dims).astype(np.bool_)
    graph = OperationGraph([PackBits(mask, bits_tensor(mask))])
    (packed,) = run_plan(scheduled, ENGINE.plan(graph, SM_90A, {}), graph, {1: elements}).values()
    in_memory = elements.transpose(0, 2, 3, 1) if len(dims) == 4 else elements
    np.testing.assert_array_equal(packed, np.packbits(in_memory.reshape(-1), bitorder="little"))
    np.testing.assert_array_equal(packed, evaluate(graph, {1: elements})[2])

    graph = OperationGraph([UnpackBits(bits_tensor(mask), mask)])
    (unpacked,) = run_plan(scheduled, ENGINE.plan(graph, SM_90A, {}), graph, {2: packed}).values()
    np.testing.assert_array_equal(unpacked, elements)
    np.testing.assert_array_equal(unpacked, evaluate(graph, {2: packed})[1])


def test_no_race(racing: Runtime) -> None:
    mask = mask_of((3, 700))
    graph = OperationGraph([PackBits(mask, bits_tensor(mask))])
    elements = np.ones(mask.dims, np.bool_)
    run_plan(racing, ENGINE.plan(graph, SM_90A, {}), graph, {1: elements})


def test_what_is_refused() -> None:
    mask = mask_of(DIMS)
    with raises(
        BadParamError, "tensor 'mask' (uid 1).strides", expected="elements side by side, where a byte has eight of them"
    ):
        PackBits(replace(mask, strides=(210, 70, 14, 2)), bits_tensor(mask))
    with raises(UnsupportedDataTypeError, "tensor 'mask' (uid 1).data_type", expected="BOOLEAN", got="UINT8"):
        PackBits(replace(mask, data_type=DataType.UINT8), bits_tensor(mask))
    with raises(ShapeMismatchError, "tensor 'bits' (uid 2).dims", expected="[27]", got="[28]"):
        PackBits(mask, replace(bits_tensor(mask), dims=(28,)))
    for strides in ((0,), (2,)):
        got = str([*strides])
        with raises(BadParamError, "tensor 'bits' (uid 2).strides", expected="[1], bytes side by side", got=got):
            UnpackBits(replace(bits_tensor(mask), strides=strides), mask)
    virtual = OperationGraph([PackBits(mask, bits_tensor(mask))])
    assert ENGINE.refuse(virtual, SM_90A) is None
