"""Variant packs that the library keeps by itself are like those of Python, whatever is called."""

from __future__ import annotations

import ctypes
import itertools
import platform
import random
import threading
from typing import Any

import numpy as np
import pytest

from lowdnn.capi.loading import Binding
from lowdnn.capi.log_callback import CALLBACK
from lowdnn.capi.stubs import pool
from lowdnn.enums import AttributeName, AttributeType, DescriptorType, Severity
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.capi.test_backend import Sum
from tests.support.capi import Caller
from tests.support.runtime import download

N, T, D = AttributeName, AttributeType, DescriptorType

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the library keeps packs on x86-64 alone")
POINTERS, UIDS, WORKSPACE = N.VARIANT_PACK_DATA_POINTERS, N.VARIANT_PACK_UNIQUE_IDS, N.VARIANT_PACK_WORKSPACE


@pytest.fixture
def case(caller: Caller, device: Runtime) -> Sum:
    return Sum(caller, device)


def is_kept(binding: Binding, pack: int) -> bool:
    return binding.state.packs.content(pack) is not None


def test_a_cycle_goes_past_python(case: Sum, binding: Binding) -> None:
    caller, objects = case.caller, len(binding.state.objects)
    addresses = {uid: buffer.address for uid, buffer in enumerate(case.buffers, 1)}
    before = binding.state.counts.by_name()
    for order in ((1, 2, 3), (3, 1, 2), (2, 3, 1)):
        pack = caller.pack({uid: addresses[uid] for uid in order})
        assert is_kept(binding, pack)
        caller.call("cudnnBackendExecute", case.handle, case.plan, pack)
        np.testing.assert_array_equal(download(case.y, np.float32), case.expected)
        caller.call("cudnnBackendDestroyDescriptor", pack)
        assert caller.status("cudnnBackendExecute", case.handle, case.plan, pack) is Status.BAD_PARAM
        assert caller.status("cudnnBackendDestroyDescriptor", pack) is Status.BAD_PARAM
    after = binding.state.counts.by_name()
    calls = {name: after[name] - before.get(name, 0) for name in pool.FUNCTIONS}
    assert [*calls.values()] == [3, 9, 3, 6]
    assert len(binding.state.objects) == objects


def test_tensors_that_the_plan_does_not_have(case: Sum, binding: Binding) -> None:
    """Such tensors are passed over; a missing one is refused with its name."""
    addresses = {uid: buffer.address for uid, buffer in enumerate(case.buffers, 1)}
    more = case.caller.pack(addresses | {77: 4096})
    case.caller.call("cudnnBackendExecute", case.handle, case.plan, more)
    np.testing.assert_array_equal(download(case.y, np.float32), case.expected)
    less = case.caller.pack({1: addresses[1], 3: addresses[3]})
    assert case.caller.status("cudnnBackendExecute", case.handle, case.plan, less).category is Status.BAD_PARAM
    assert is_kept(binding, more)
    assert is_kept(binding, less)


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(range(4), 2)])
def test_a_uid_twice(caller: Caller, one: int, other: int) -> None:
    uids = [10, 11, 12, 13]
    uids[other] = uids[one]
    pack = caller.create(D.VARIANT_PACK)
    for name, kind, values in ((UIDS, T.INT64, uids), (POINTERS, T.VOID_PTR, [16, 32, 48, 64])):
        assert caller.set(pack, name, kind, *values) is Status.SUCCESS
    assert caller.status("cudnnBackendFinalize", pack) is Status.BAD_PARAM_DUPLICATED_ENTRIES
    assert caller.set(pack, UIDS, T.INT64, 1, 2, 3, 4) is Status.SUCCESS
    caller.call("cudnnBackendFinalize", pack)


def test_more_packs_and_tensors_than_the_library_keeps(case: Sum, binding: Binding) -> None:
    caller, addresses = case.caller, {uid: buffer.address for uid, buffer in enumerate(case.buffers, 1)}
    packs = [caller.pack(addresses) for _ in range(pool.PACKS + 8)]
    assert len({*packs}) == len(packs)
    assert sum(is_kept(binding, pack) for pack in packs) == pool.PACKS - 1  # the case has one
    for pack in packs:
        case.y.fill_bytes(0)
        caller.call("cudnnBackendExecute", case.handle, case.plan, pack)
        np.testing.assert_array_equal(download(case.y, np.float32), case.expected)
        caller.call("cudnnBackendDestroyDescriptor", pack)
    for count in (pool.MOST, pool.MOST + 1):
        many = caller.pack(addresses | {100 + number: 4096 for number in range(count - 3)})
        assert is_kept(binding, many) == (count == pool.MOST)
        caller.call("cudnnBackendExecute", case.handle, case.plan, many)


def test_a_log_is_told_of_every_call(case: Sum, binding: Binding) -> None:
    caller, told = case.caller, list[bytes]()
    old = case.pack
    assert is_kept(binding, old)
    function = CALLBACK(lambda severity, data, record, message: told.append(message))
    caller.call("cudnnSetCallback", 1 << Severity.INFO, None, ctypes.cast(function, ctypes.c_void_p))
    pack = caller.pack({uid: buffer.address for uid, buffer in enumerate(case.buffers, 1)})
    caller.call("cudnnBackendDestroyDescriptor", old)
    caller.call("cudnnSetCallback", 0, None, None)
    assert not is_kept(binding, pack)
    wanted = [name.encode() for name in (pool.FUNCTIONS[0], *[pool.FUNCTIONS[1]] * 3, *pool.FUNCTIONS[2:])]
    assert [message for message in told if message in wanted] == wanted
    assert is_kept(binding, caller.create(D.VARIANT_PACK))


def test_packs_end_with_the_state(case: Sum, binding: Binding) -> None:
    binding.state.close()
    assert case.caller.status("cudnnBackendDestroyDescriptor", case.pack) is Status.BAD_PARAM


def test_threads_have_packs_of_their_own(caller: Caller, binding: Binding) -> None:
    wrong: list[Any] = []

    def work(number: int) -> None:
        for turn in range(300):
            pack = caller.pack({1: number + 1, 2: turn + 1}, workspace=number)
            content = binding.state.packs.content(pack)
            if content is None or (content.pointers, content.workspace) != ((number + 1, turn + 1), number):
                wrong.append((number, turn, content))
            caller.call("cudnnBackendDestroyDescriptor", pack)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class Twin:
    """A pair of packs that get the same calls: one of the library's, where it keeps it, and one of Python's."""

    def __init__(self, caller: Caller, binding: Binding) -> None:
        self.caller, self.packs = caller, binding.state.packs
        self.own = caller.create(D.VARIANT_PACK)
        self.packs.use(False)
        self.other = caller.create(D.VARIANT_PACK)
        self.packs.use(True)

    def same(self, name: str, *arguments: Any) -> None:
        results = []
        for pack in (self.own, self.other):
            status = self.caller.status(name, pack, *arguments)
            results.append((status, self.caller.last_error().replace(f"{pack:#x}", "") if status else ""))
        assert results[0] == results[1], (name, arguments)

    def same_content(self) -> None:
        for name, kind in ((POINTERS, T.VOID_PTR), (UIDS, T.INT64), (WORKSPACE, T.VOID_PTR)):
            self.same("cudnnBackendGetAttribute", int(name), int(kind), 0, ctypes.byref(ctypes.c_int64()), None)
            found = []
            for pack in (self.own, self.other):
                array, count = (ctypes.c_int64 * 64)(), ctypes.c_int64()
                arguments = (pack, int(name), int(kind), 64, ctypes.byref(count), array)
                found.append((self.caller.status("cudnnBackendGetAttribute", *arguments), list(array), count.value))
            assert found[0] == found[1]


@pytest.mark.parametrize("seed", range(40))
def test_random_calls(caller: Caller, binding: Binding, seed: int) -> None:
    """Names, types, counts and contents right and wrong, in any order, with a look at the content now and then."""
    rng = random.Random(seed)
    twin = Twin(caller, binding)
    names = (POINTERS, UIDS, WORKSPACE, N.VARIANT_PACK_OVERRIDE_UNIQUE_IDS, N.TENSOR_UNIQUE_ID)
    kinds = {POINTERS: T.VOID_PTR, UIDS: T.INT64, WORKSPACE: T.VOID_PTR}
    for _ in range(rng.randrange(2, 12)):
        action = rng.random()
        if action < 0.7:
            name = rng.choices(names, (6, 6, 3, 1, 1))[0]
            kind = kinds.get(name, T.INT64) if rng.random() < 0.9 else rng.choice([*T])
            count = 1 if name is WORKSPACE and rng.random() < 0.8 else rng.choice((2, 3, 3, 3, 61, 1, 0, -1))
            most = 6 if rng.random() < 0.4 else 2**40
            values = (ctypes.c_int64 * 64)(*(rng.randrange(1, most) for _ in range(64)))
            twin.same("cudnnBackendSetAttribute", int(name), int(kind), count, values if rng.random() < 0.95 else None)
        elif action < 0.85:
            twin.same("cudnnBackendFinalize")
        elif action < 0.95:
            twin.same_content()
        else:
            twin.same("cudnnBackendInitialize")
    twin.same("cudnnBackendFinalize")
    twin.same_content()
    twin.same("cudnnBackendDestroyDescriptor")
    twin.same("cudnnBackendDestroyDescriptor")
