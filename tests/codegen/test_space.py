from __future__ import annotations

from lowdnn.codegen.space import IndexSpace, collapsed, with_axis


def space(extents: tuple[int, ...], *rows: tuple[int, ...]) -> IndexSpace:
    return IndexSpace(extents, dict(enumerate(rows)), tuple((axis,) for axis in range(len(extents))))


def test_packed_axes_become_one() -> None:
    merged = collapsed(space((2, 3, 4), (12, 4, 1), (12, 4, 1)))
    assert merged == IndexSpace((24,), {0: (1,), 1: (1,)}, ((0, 1, 2),))


def test_a_repeating_tensor_keeps_its_own_axis() -> None:
    merged = collapsed(space((2, 3, 4, 5), (60, 20, 5, 1), (0, 1, 0, 0)))
    assert merged.extents == (2, 3, 20)
    assert merged.strides == {0: (60, 20, 1), 1: (0, 1, 0)}


def test_axes_of_extent_1_disappear_whatever_their_strides() -> None:
    assert collapsed(space((1, 6, 1, 2), (99, 2, 7, 1))).extents == (12,)
    assert collapsed(space((1, 1), (5, 5))).extents == ()


def test_axes_alone_stay() -> None:
    assert collapsed(space((2, 3, 4), (12, 4, 1)), alone={1}).extents == (2, 3, 4)
    assert collapsed(space((2, 1, 4), (4, 4, 1)), alone={1}).extents == (2, 1, 4)


def test_axes_apart_merge_with_each_other_only() -> None:
    merged = collapsed(space((2, 3, 4, 5), (60, 20, 5, 1)), separate={2, 3})
    assert (merged.extents, merged.origin) == ((6, 20), ((0, 1), (2, 3)))


def test_padding_between_rows_prevents_merging() -> None:
    assert collapsed(space((2, 3), (4, 1))).extents == (2, 3)


def test_an_empty_axis_leaves_the_space_empty() -> None:
    assert 0 in collapsed(space((2, 0, 3), (0, 3, 1))).extents


def test_permuting_and_adding_axes() -> None:
    turned = space((2, 3), (3, 1)).permuted((1, 0))
    assert (turned.extents, turned.strides[0], turned.origin) == ((3, 2), (1, 3), ((1,), (0,)))
    wider = with_axis(turned, 1)
    assert (wider.extents, wider.strides[0], wider.origin) == ((3, 1, 2), (1, 0, 3), ((1,), (), (0,)))
