from __future__ import annotations

import ctypes

import pytest

from lowdnn.runtime.layout import TENSOR_MAP, CType, layout_of, size_and_alignment

C_TYPES = {"i": ctypes.c_int32, "q": ctypes.c_int64, "f": ctypes.c_float, "d": ctypes.c_double, "Q": ctypes.c_void_p}

INNER = ("i", "d")
OUTER = ("i", "Q", INNER, "f", "Q", ("i", ("f",)), "i")


def structure(c_type: CType) -> type:
    """The type as ctypes lays it out."""
    if isinstance(c_type, str):
        return C_TYPES[c_type]
    fields = tuple((f"field{index}", structure(member)) for index, member in enumerate(c_type))
    return type("Made", (ctypes.Structure,), {"_fields_": fields})


@pytest.mark.parametrize("c_type", ["i", "d", INNER, OUTER, ("q", "i"), ("i", "f"), ("i", "q", "i", OUTER)])
def test_size_and_alignment_are_those_of_c(c_type: CType) -> None:
    made = structure(c_type)
    assert size_and_alignment(c_type) == (ctypes.sizeof(made), ctypes.alignment(made))


def test_an_empty_struct_has_size_one() -> None:
    assert size_and_alignment(()) == (1, 1)
    assert size_and_alignment(("q", ())) == (16, 8)


def test_arguments_start_at_64_bytes_and_their_addresses_follow() -> None:
    layout = layout_of(("i", ("q", "i"), "f"))
    assert layout.arguments == (0, 64, 128)
    assert layout.leaves == (0, 64, 72, 128)
    assert (layout.pointers, layout.size_bytes) == (136, 160)


def test_a_tensor_map_aligns_its_struct() -> None:
    assert size_and_alignment(TENSOR_MAP) == (128, 64)
    assert size_and_alignment(("i", TENSOR_MAP, "q")) == (256, 64)
    layout = layout_of((("i", TENSOR_MAP, ("i", TENSOR_MAP)),))
    assert layout.leaves == (0, 64, 192, 256)
    packed = layout.packer.pack(1, b"a" * 128, 2, b"b" * 128, 300)
    assert packed[64:192] == b"a" * 128
    assert packed[256:384] == b"b" * 128


def test_the_packer_writes_each_leaf_at_its_position() -> None:
    layout = layout_of(("i", ("i", ("q",)), "i"))
    packed = layout.packer.pack(1, 2, 3, 4, 100, 200, 300)
    found = [int.from_bytes(packed[position : position + 4], "little") for position in layout.leaves]
    assert found == [1, 2, 3, 4]
    addresses = [int.from_bytes(packed[layout.pointers + 8 * i :][:8], "little") for i in range(3)]
    assert addresses == [100, 200, 300]


def test_no_arguments_take_no_bytes() -> None:
    assert layout_of(()).size_bytes == 0
