"""Execution through descriptors, on the device: what runs, and every bad variant pack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.backend import Descriptor, Handle, execute
from lowdnn.config import Config
from lowdnn.enums import AttributeName, AttributeType, DescriptorType
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.stream import Stream
from lowdnn.runtime.workspace import size_anywhere
from lowdnn.status import (
    ArchMismatchError,
    AttributeTypeError,
    BadParamError,
    DescriptorTypeError,
    DuplicatedEntriesError,
    LowdnnError,
    MisalignedPointerError,
    NotFinalizedError,
    NotInitializedError,
    NullPointerError,
    SizeInsufficientError,
)
from tests.support.descriptors import (
    A,
    B,
    Y,
    add_graph,
    best_config,
    device_properties,
    made,
    plan_of,
    variant_pack,
)
from tests.support.runtime import download, upload

N, T = AttributeName, AttributeType


class Case:
    """y = a + b, built on a handle, with its buffers."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.plan = plan_of(best_config(add_graph(handle)), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
        self.expected = np.arange(32, dtype=np.float32) * 3
        self.a = upload(handle.runtime, np.arange(32, dtype=np.float32))
        self.b = upload(handle.runtime, np.arange(32, dtype=np.float32) * 2)
        self.y = upload(handle.runtime, np.full(32, np.nan, np.float32))

    @property
    def pointers(self) -> dict[int, int]:
        return {A: self.a.address, B: self.b.address, Y: self.y.address}

    def run(self, pointers: dict[int, int] | None = None, workspace: int = 0) -> NDArray[np.float32]:
        execute(self.handle, self.plan, variant_pack(pointers or self.pointers, workspace))
        found: NDArray[np.float32] = download(self.y, np.float32)
        return found

    def assert_still_works(self) -> None:
        np.testing.assert_array_equal(self.run(), self.expected)


@pytest.fixture
def case(handle: Handle) -> Case:
    return Case(handle)


@pytest.fixture
def second_buffer(handle: Handle) -> Iterator[DeviceBuffer]:
    with upload(handle.runtime, np.full(32, np.nan, np.float32)) as buffer:
        yield buffer


def test_execute(case: Case) -> None:
    np.testing.assert_array_equal(case.run(), case.expected)


def test_new_pointers_are_used(case: Case, second_buffer: DeviceBuffer) -> None:
    case.assert_still_works()
    case.run(case.pointers | {Y: second_buffer.address})
    np.testing.assert_array_equal(download(second_buffer, np.float32), case.expected)


def test_work_goes_into_the_handles_stream(case: Case) -> None:
    case.assert_still_works()
    case.y.copy_from_host(np.full(32, np.nan, np.float32))
    with Stream.create(case.handle.runtime.context) as stream:
        case.handle.set_stream(stream)
        stream.begin_capture()
        execute(case.handle, case.plan, variant_pack(case.pointers))
        assert stream.end_capture()
        case.handle.set_stream(0)
    assert np.isnan(download(case.y, np.float32)).all(), "nothing runs while the stream is captured"


def test_one_plan_on_two_devices(case: Case) -> None:
    case.assert_still_works()
    if case.handle.runtime.driver.kind == "cuda":
        pytest.skip("one GPU is all there is")
    with Handle.open("emulated", arch=case.handle.arch.name) as second:
        other = Case(second)
        other.plan = case.plan
        other.assert_still_works()


def test_a_plan_restored_from_json_runs(case: Case) -> None:
    (text,) = case.plan.get_attribute(N.EXECUTION_PLAN_JSON_REPRESENTATION, T.CHAR)
    case.plan = made(DescriptorType.EXECUTION_PLAN, (N.EXECUTION_PLAN_JSON_REPRESENTATION, T.CHAR, text))
    case.assert_still_works()


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({A: None}, BadParamError, "variant_pack"),
        ({B: 0}, NullPointerError, "uid 2"),
        ({B: "+4"}, MisalignedPointerError, "expected a multiple of 16 bytes"),
    ],
)
def test_bad_variant_packs(case: Case, change: dict[int, object], error: type[LowdnnError], text: str) -> None:
    case.assert_still_works()
    pointers = dict(case.pointers)
    for uid, value in change.items():
        if value is None:
            del pointers[uid]
        else:
            pointers[uid] = pointers[uid] + 4 if value == "+4" else int(str(value))
    with pytest.raises(error, match=text) as caught:
        case.run(pointers)
    assert case.handle.last_error == str(caught.value)
    case.assert_still_works()


@pytest.mark.parametrize("uids", [*permutations((A, B, Y))])
def test_the_order_of_uids_does_not_matter(case: Case, uids: tuple[int, ...]) -> None:
    case.run({uid: case.pointers[uid] for uid in uids})
    np.testing.assert_array_equal(download(case.y, np.float32), case.expected)
    assert "keys_passed_over" not in case.handle.runtime.counters.snapshot()


def test_uids_that_the_plan_has_not_are_passed_over_and_counted(case: Case) -> None:
    pack = variant_pack(case.pointers | {99: 4096, 98: 0})
    for _ in range(2):
        execute(case.handle, case.plan, pack)
    np.testing.assert_array_equal(download(case.y, np.float32), case.expected)
    assert case.handle.runtime.counters.snapshot()["keys_passed_over"] == 2
    missing = {uid: address for uid, address in case.pointers.items() if uid != A} | {99: 4096}
    with pytest.raises(BadParamError, match=rf"an address for {A}"):
        case.run(missing)


def test_the_workspace_is_checked(case: Case, second_buffer: DeviceBuffer) -> None:
    # An addition needs none, so its plan is loaded as one that does.
    needy = replace(case.plan.value.plan, workspace_bytes=100)
    case.plan.value._loaded[case.handle] = case.handle.load(needy)
    with pytest.raises(NullPointerError, match="workspace: expected the address of 100 bytes, got 0"):
        case.run()
    with pytest.raises(SizeInsufficientError, match="workspace: expected 352 bytes, got 124 to the end of its buffer"):
        case.run(workspace=second_buffer.address + 4)
    with DeviceBuffer.allocate(case.handle.runtime.context, 255 + size_anywhere(100)) as memory:
        for offset in (0, 4, 255):
            np.testing.assert_array_equal(case.run(workspace=memory.address + offset), case.expected)


def test_uids_and_pointers_must_pair_up() -> None:
    with pytest.raises(DuplicatedEntriesError, match=r"expected each uid once, got \[1\]"):
        made(
            DescriptorType.VARIANT_PACK,
            (N.VARIANT_PACK_UNIQUE_IDS, T.INT64, (1, 1)),
            (N.VARIANT_PACK_DATA_POINTERS, T.VOID_PTR, (16, 32)),
        )
    for pointers in ((16,), (16, 32, 48)):
        with pytest.raises(BadParamError, match=f"expected 2 pointers, one for each uid, got {len(pointers)}"):
            made(
                DescriptorType.VARIANT_PACK,
                (N.VARIANT_PACK_UNIQUE_IDS, T.INT64, (1, 2)),
                (N.VARIANT_PACK_DATA_POINTERS, T.VOID_PTR, pointers),
            )


def test_a_buffer_that_is_too_small_is_noticed_in_debug_mode(device: Runtime) -> None:
    with Handle(Runtime(device.driver, config=Config(debug=True, disk_cache=False))) as handle:
        case = Case(handle)
        with (
            upload(handle.runtime, np.zeros(8, np.float32)) as small,
            pytest.raises(SizeInsufficientError, match="expected 128 bytes, got 32 to the end of its buffer"),
        ):
            case.run(case.pointers | {A: small.address})
        case.assert_still_works()


def test_the_arguments_must_be_what_they_are(case: Case) -> None:
    pack = variant_pack(case.pointers)
    with pytest.raises(DescriptorTypeError, match=r"execute.plan: expected EXECUTION_PLAN, got VARIANT_PACK"):
        execute(case.handle, pack, pack)
    unfinished = Descriptor(type(pack.value))
    with pytest.raises(NotFinalizedError):
        execute(case.handle, case.plan, unfinished)
    case.assert_still_works()


def test_a_closed_handle(case: Case) -> None:
    pack = variant_pack(case.pointers)
    case.handle.close()
    with pytest.raises(NotInitializedError, match=r"handle.execute: expected an open handle, got a closed one"):
        execute(case.handle, case.plan, pack)


def test_a_plan_for_another_architecture(handle: Handle) -> None:
    other = "sm_80" if handle.arch.name == "sm_90a" else "sm_90a"
    properties = (N.ENGINEHEUR_DEVICEPROP, T.BACKEND_DESCRIPTOR, device_properties(16, other))
    config = best_config(add_graph(), properties)
    with pytest.raises(ArchMismatchError, match="make the plan again"):
        plan_of(config, (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))


@pytest.mark.parametrize("value", [None, "x", 3])
def test_what_is_no_handle_or_descriptor(case: Case, value: Any) -> None:
    plan, pack = case.plan, variant_pack(case.pointers)
    with pytest.raises(AttributeTypeError, match=r"execute\.handle: expected a Handle"):
        execute(value, plan, pack)
    with pytest.raises(DescriptorTypeError, match=r"execute\.plan: expected EXECUTION_PLAN"):
        execute(case.handle, value, pack)
    with pytest.raises(DescriptorTypeError, match=r"execute\.variant_pack: expected VARIANT_PACK"):
        execute(case.handle, plan, value)
    case.assert_still_works()
