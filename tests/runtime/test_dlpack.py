from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from lowdnn.enums import DataType
from lowdnn.runtime import dlpack
from lowdnn.runtime.dlpack import make_capsule, read_capsule
from lowdnn.status import BadParamError, UnsupportedDataTypeError

CPU = (1, 0)


class Owner:
    """Something whose end can be watched; hands out capsules over ``array``, as a producer does."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **_: object) -> object:
        return make_capsule(
            self,
            address=self.array.ctypes.data,
            device=CPU,
            data_type=DataType.FLOAT,
            shape=self.array.shape,
            strides=tuple(stride // 4 for stride in self.array.strides),
            is_versioned=max_version is not None,
        )


@pytest.fixture
def array() -> Any:
    return np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_what_numpy_exports_is_read(array: Any, version: tuple[int, int] | None) -> None:
    facts = read_capsule(array[:, 1:].__dlpack__(max_version=version))
    assert facts.address == array[:, 1:].ctypes.data
    assert (facts.data_type, facts.shape, facts.strides) == (DataType.FLOAT, (2, 2), (3, 1))
    assert facts.device == CPU
    assert not facts.is_read_only


def test_read_only_flag_is_read(array: Any) -> None:
    array.flags.writeable = False
    assert read_capsule(array.__dlpack__(max_version=(1, 0))).is_read_only


def test_numpy_reads_what_is_exported(array: Any) -> None:
    taken = np.from_dlpack(Owner(array))
    assert np.array_equal(taken, array)
    assert np.shares_memory(taken, array)


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_the_owner_lives_as_long_as_the_capsule(array: Any, version: tuple[int, int] | None) -> None:
    owner = Owner(array)
    watched = weakref.ref(owner)
    capsule: object = owner.__dlpack__(max_version=version)
    del owner
    gc.collect()
    assert watched() is not None
    read_capsule(capsule)
    assert watched() is not None
    del capsule
    gc.collect()
    assert watched() is None


def test_the_owner_lives_as_long_as_the_consumer(array: Any) -> None:
    owner = Owner(array)
    watched = weakref.ref(owner)
    taken = np.from_dlpack(owner)
    del owner
    gc.collect()
    assert watched() is not None
    del taken
    gc.collect()
    assert watched() is None


def test_a_consumed_capsule_is_refused(array: Any) -> None:
    capsule = Owner(array).__dlpack__()

    class Holder(Owner):
        def __dlpack__(self, **_: object) -> object:
            return capsule

    np.from_dlpack(Holder(array))
    with pytest.raises(BadParamError, match="unconsumed"):
        read_capsule(capsule)
    with pytest.raises(BadParamError):
        read_capsule(42)


def test_an_offset_is_added_to_the_address(array: Any) -> None:
    capsule: object = Owner(array).__dlpack__()
    tensor = dlpack._managed_of(capsule).tensor
    tensor.data, tensor.byte_offset = array.ctypes.data - 8, 20
    assert read_capsule(capsule).address == array.ctypes.data + 12


def test_what_an_exported_tensor_says_of_itself(array: Any) -> None:
    capsule: object = make_capsule(
        None, address=64, device=(2, 3), data_type=DataType.HALF, shape=(4,), strides=(1,), is_versioned=True
    )
    assert read_capsule(capsule).device == (2, 3)
    managed = dlpack._managed_of(capsule)
    managed.tensor.lanes = 2
    with pytest.raises(UnsupportedDataTypeError, match="16 bits, 2 lanes"):
        read_capsule(capsule)
    managed.tensor.lanes, managed.major = 1, 2
    with pytest.raises(BadParamError, match=r"version: expected at most 1\.x, got 2\.0"):
        read_capsule(capsule)


@pytest.mark.parametrize(("field", "value"), [("ndim", -1), ("ndim", 65), ("shape", None)])
def test_damaged_shapes_are_refused(array: Any, field: str, value: object) -> None:
    capsule: object = Owner(array).__dlpack__()
    setattr(dlpack._managed_of(capsule).tensor, field, value)
    with pytest.raises(BadParamError, match=r"dlpack\.shape: expected 0 to 64 extents"):
        read_capsule(capsule)


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_dropped_by_an_exception_frees_its_owner(array: Any, version: tuple[int, int] | None) -> None:
    """Its destructor runs while the exception is on its way, and leaves it as it is."""
    owner = Owner(array)
    watched = weakref.ref(owner)

    def consume(capsule: object) -> None:
        raise KeyError("of the consumer")

    with pytest.raises(KeyError, match="of the consumer"):
        consume(owner.__dlpack__(max_version=version))
    del owner
    gc.collect()
    assert watched() is None


def test_a_consumer_that_refuses_leaves_nothing(array: Any) -> None:
    class Foreign(Owner):
        def __dlpack__(self, **_: object) -> object:
            capsule: object = super().__dlpack__()
            dlpack._managed_of(capsule).tensor.device_type = 12
            return capsule

    owner = Foreign(array)
    watched = weakref.ref(owner)
    with pytest.raises((BufferError, RuntimeError), match=r"(?i)device"):
        np.from_dlpack(owner)
    del owner
    gc.collect()
    assert watched() is None


def test_capsules_that_live_at_exit_end_quietly() -> None:
    script = """
import numpy as np
from tests.runtime.test_dlpack import Owner
array = np.arange(6, dtype=np.float32)
kept = [Owner(array).__dlpack__(), Owner(array).__dlpack__(max_version=(1, 0)), np.from_dlpack(Owner(array))]
kept.append(kept)
"""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_capsules_are_dropped_in_any_thread(array: Any) -> None:
    owner = Owner(array)
    watched = weakref.ref(owner)
    capsules = [owner.__dlpack__(max_version=version) for version in (None, (1, 0)) for _ in range(50)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda place: capsules.__setitem__(place, None), range(len(capsules))))
    del owner
    gc.collect()
    assert watched() is None


def test_types_without_a_counterpart(array: Any) -> None:
    with pytest.raises(UnsupportedDataTypeError, match="16 bits"):
        read_capsule(array.astype(np.int16).__dlpack__())
    with pytest.raises(UnsupportedDataTypeError):
        make_capsule(None, address=0, device=CPU, data_type=DataType.INT8x4, shape=(), strides=(), is_versioned=False)
