"""By-value tensors given as every kind of host object, in any order, with values that change in place."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn import dtypes
from lowdnn.backend import Handle
from lowdnn.enums import DataType
from lowdnn.frontend.python_graph import pygraph
from lowdnn.runtime.dlpack import make_capsule
from lowdnn.status import AttributeTypeError, BadParamError, NullPointerError

FLOAT = cudnn.data_type.FLOAT


class TorchLike:
    """Imitates a CPU tensor of torch over NumPy's memory; ``reads`` counts reads of its value."""

    def __init__(self, held: np.ndarray[Any, Any], dtype: str, *, is_cpu: bool = True) -> None:
        self.held = held
        self.dtype = _TORCH_DTYPES[dtype]
        self.is_cpu = is_cpu
        self.reads = 0

    def data_ptr(self) -> int:
        return int(self.held.ctypes.data)

    def numel(self) -> int:
        return self.held.size

    def item(self) -> Any:
        self.reads += 1
        return self.held.item()


class _TorchDtype:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"torch.{self._name}"


_TORCH_DTYPES = {name: _TorchDtype(name) for name in ("float32", "float64", "bfloat16", "int64")}


class DlpackOnly:
    """A host array through DLPack and nothing else."""

    def __init__(self, held: np.ndarray[Any, Any]) -> None:
        self._held = held

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **options: Any) -> object:
        return self._held.__dlpack__(**options)


class Bfloat16Export(DlpackOnly):
    """A host array of bfloat16's bits, whose type NumPy does not take."""

    def __dlpack__(self, **_: Any) -> object:
        return make_capsule(
            self,
            address=self._held.ctypes.data,
            device=(1, 0),
            data_type=DataType.BFLOAT16,
            shape=self._held.shape,
            strides=(1,) * self._held.ndim,
            is_versioned=False,
        )


class InterfaceOnly:
    """A host array through ``__array_interface__`` and nothing else."""

    def __init__(self, held: np.ndarray[Any, Any]) -> None:
        self._held = held
        self.__array_interface__ = held.__array_interface__


def full(value: float, dtype: Any = np.float32, shape: tuple[int, ...] = (1, 1, 1, 1)) -> np.ndarray[Any, Any]:
    return np.full(shape, value, dtype)


#: Host objects that hold one number, by name; each holds multiples of a half exactly.
WRITTEN: dict[str, Callable[[float], Any]] = {
    "float": float,
    "NumPy scalar": np.float32,
    "NumPy double": np.float64,
    "NumPy half": np.float16,
    "array": full,
    "array of doubles": lambda value: full(value, np.float64),
    "array of halves": lambda value: full(value, np.float16, (1,)),
    "array without axes": lambda value: full(value, np.float32, ()),
    "read-only array": lambda value: np.broadcast_to(np.float32(value), (1, 1)),
    "bfloat16 array": lambda value: full(value, ml_dtypes.bfloat16),
    "bfloat16 scalar": ml_dtypes.bfloat16,
    "torch": lambda value: TorchLike(full(value), "float32"),
    "torch doubles": lambda value: TorchLike(full(value, np.float64), "float64"),
    "DLPack": lambda value: DlpackOnly(full(value)),
    "DLPack doubles": lambda value: DlpackOnly(full(value, np.float64)),
    "array interface": lambda value: InterfaceOnly(full(value)),
    "buffer": lambda value: array.array("f", [value]),
    "ctypes": ctypes.c_double,
}


class Scale:
    """y = x * factor over 64 elements, with ``factor`` by value in ``data_type``."""

    def __init__(self, handle: Handle, data_type: cudnn.data_type = FLOAT) -> None:
        self.graph = pygraph("scale", FLOAT, FLOAT, FLOAT, handle)
        self.tensor_x = self.graph.tensor([64])
        self.factor = self.graph.tensor([1], is_pass_by_value=True, name="factor", data_type=data_type)
        self.tensor_y = self.graph.mul(self.tensor_x, self.factor).set_output(True)
        self.x = lowdnn.from_numpy(np.arange(64, dtype=np.float32), handle)
        self.y = lowdnn.from_numpy(np.zeros(64, np.float32), handle)

    def execute(self, value: object) -> None:
        self.graph.execute({self.tensor_x: self.x, self.factor: value, self.tensor_y: self.y})

    def check(self, value: object, expected: float) -> None:
        self.execute(value)
        np.testing.assert_array_equal(self.y.numpy(), self.x.numpy() * np.float32(expected))


@pytest.fixture
def scale(handle: Handle) -> Scale:
    return Scale(handle)


@pytest.mark.parametrize("data_type", [FLOAT, cudnn.data_type.DOUBLE, cudnn.data_type.HALF, cudnn.data_type.BFLOAT16])
def test_values_of_any_kind_follow_each_other(handle: Handle, data_type: cudnn.data_type) -> None:
    scale = Scale(handle, data_type)
    held = dtypes.from_float64(np.array([2.5]), DataType[data_type.name])
    kinds = [*WRITTEN.items(), ("address", lambda value: int(held.ctypes.data))]
    draw = Random(f"values {data_type}")
    for _ in range(60):
        name, write = draw.choice(kinds)
        for _ in range(draw.randint(1, 3)):
            value = 2.5 if name == "address" else draw.randint(-8, 8) / 2
            scale.check(write(value), value)


@pytest.mark.parametrize("name", ["array", "array of doubles", "torch", "torch doubles", "DLPack"])
def test_memory_is_read_at_each_call(scale: Scale, name: str) -> None:
    memory = full(0, np.float64 if "doubles" in name else np.float32)
    value = {
        "torch": lambda: TorchLike(memory, "float32"),
        "torch doubles": lambda: TorchLike(memory, "float64"),
        "DLPack": lambda: DlpackOnly(memory),
    }.get(name, lambda: memory)()
    for number in (1.0, -3.5, 4.0):
        memory[...] = number
        scale.check(value, number)


def test_a_cpu_tensor_of_the_tensors_type_is_taken_by_its_address(scale: Scale) -> None:
    value = TorchLike(full(3), "float32")
    for _ in range(3):
        scale.check(value, 3)
    assert value.reads == 0
    scale.check(TorchLike(full(2, np.float64), "float64"), 2)
    # Another tensor of the same class may have another type, or lie elsewhere.
    scale.check(TorchLike(np.full(1, 7, np.int64), "int64"), 7)


@pytest.mark.parametrize("name", WRITTEN)
def test_later_calls_do_not_look_for_keys_again(scale: Scale, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scale.check(WRITTEN[name](1.0), 1)
    monkeypatch.delattr("lowdnn.frontend.execution.Keys")
    for value in (2.0, -0.5):
        scale.check(WRITTEN[name](value), value)


def test_integers_are_addresses(scale: Scale) -> None:
    held = full(4)
    scale.check(held.ctypes.data, 4)
    held[...] = 5
    scale.check(held.ctypes.data, 5)
    for low in (3, 65535):
        with pytest.raises(BadParamError, match=r"\(factor\).*: expected a host address, where it is an integer, got"):
            scale.execute(low)
    with pytest.raises(NullPointerError, match="factor"):
        scale.execute(0)
    for wrong in (-1, 2**64):
        with pytest.raises(AttributeTypeError, match="factor"):
            scale.execute(wrong)
    scale.check(2.0, 2)


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(2, np.float32),
        np.zeros(0, np.float32),
        np.array([1 + 2j], np.complex64),
        np.complex64(1),
        1j,
        "1",
        np.str_("1"),
        np.datetime64(1, "D"),
        None,
        object(),
        [1.0],
        TorchLike(full(0, shape=(2,)), "float32"),
        TorchLike(full(1), "float32", is_cpu=False),
        DlpackOnly(np.zeros(2, np.float32)),
        Bfloat16Export(np.zeros(2, np.uint16)),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("is_warm", [False, True], ids=["first call", "later call"])
def test_what_is_no_value(scale: Scale, value: object, is_warm: bool) -> None:
    if is_warm:
        scale.check(TorchLike(full(1), "float32") if isinstance(value, TorchLike) else 1.0, 1)
    with pytest.raises(AttributeTypeError, match=r"'factor'.*: expected a number or a host array of one element"):
        scale.execute(value)
    scale.check(2.0, 2)


def test_device_memory_is_no_value(scale: Scale, handle: Handle) -> None:
    with pytest.raises(AttributeTypeError, match="a host array of one element for a by-value tensor, got DeviceTensor"):
        scale.execute(lowdnn.from_numpy(np.ones(1, np.float32), handle))


def test_an_empty_tensors_address_is_refused(scale: Scale) -> None:
    class Emptied(TorchLike):
        def data_ptr(self) -> int:
            return 0

    with pytest.raises(NullPointerError, match="factor"):
        scale.execute(Emptied(full(1), "float32"))


@pytest.mark.parametrize(
    ("value", "data_type", "expected"),
    [
        (1e300, cudnn.data_type.FLOAT, np.inf),
        (-1e6, cudnn.data_type.HALF, -np.inf),
    ],
)
def test_values_beyond_the_type_are_infinite(
    handle: Handle, value: float, data_type: cudnn.data_type, expected: float
) -> None:
    scale = Scale(handle, data_type)
    scale.execute(value)
    assert scale.y.numpy()[1] == expected


def test_a_scalar_of_the_graph_needs_no_value_and_takes_one(handle: Handle) -> None:
    scale = Scale(handle)
    graph = pygraph("scalars", FLOAT, FLOAT, FLOAT, handle)
    x = graph.tensor([64])
    factor = graph.tensor_scalar(0.5, cudnn.scalar_type.RUNTIME_PARAM)
    constant = graph.tensor_scalar(3, cudnn.scalar_type.COMPILE_TIME_CONST)
    y = graph.add(graph.mul(x, factor), constant).set_output(True)
    for extra, expected in (({}, 0.5), ({}, 0.5), ({factor: 2.0}, 2.0), ({factor: full(4)}, 4.0), ({}, 0.5)):
        graph.execute({x: scale.x, y: scale.y} | extra)
        np.testing.assert_array_equal(scale.y.numpy(), scale.x.numpy() * np.float32(expected) + 3)


def test_a_missing_value_is_named(scale: Scale) -> None:
    with pytest.raises(BadParamError, match="expected a value for 'factor'"):
        scale.graph.execute({scale.tensor_x: scale.x, scale.tensor_y: scale.y})
