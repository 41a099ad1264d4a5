"""Conditions under which native kernels run: the reason for each, without a launch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")
catalog: Any = pytest.importorskip("lowdnn.torch.catalog", reason="it needs torch")
sketching: Any = pytest.importorskip("lowdnn.torch.sketch", reason="it needs torch")

F32, F16, F64, BF16 = torch.float32, torch.float16, torch.float64, torch.bfloat16
I8, I32, I64, FP8 = torch.int8, torch.int32, torch.int64, torch.float8_e4m3fn
ALL = (True, True, True)

OVERLOADS = {overload.name: overload for overload in catalog.OVERLOADS}


def t(*dims: int, dtype: Any = F32) -> Any:
    return torch.zeros(dims, dtype=dtype)


def reason_of(name: str, *args: Any, alignment: int = 16, **kwargs: Any) -> str:
    """Why lowdnn does not take the call; "" where it does.  alignment: a divisor in bytes of all addresses."""
    overload = OVERLOADS[name]
    tensors, numbers = overload.read(*args, **kwargs)
    try:
        overload.sketch(sketching.Sketch(tensors, alignment), *numbers)
    except sketching.Declined as declined:
        return str(declined)
    return ""


def image(*dims: int, dtype: Any = F32) -> Any:
    return t(2, 3, *dims, dtype=dtype)


def geometry(stride: int = 1, extra: int = 0, groups: int = 1, *, transposed: bool = False) -> tuple[Any, ...]:
    return [stride] * 2, [0] * 2, [1] * 2, transposed, [extra] * 2, groups


CONVOLUTION = [
    ((image(6, 6), t(4, 3, 3, 3), None, *geometry()), ""),
    ((image(6, 6), t(4, 3, 3, 3, dtype=F16), None, *geometry()), "float32 and float16 in one call"),
    ((image(6, 6, dtype=I64), t(4, 3, 3, 3, dtype=I64), None, *geometry()), "int64, where a float type of"),
    ((image(6, 6), t(4, 3, 3), None, *geometry()), "dims [2, 3, 6, 6] and [4, 3, 3], where one to three spatial"),
    ((t(2, 3), t(4, 3), None, *geometry()), "dims [2, 3] and [4, 3], where one to three spatial"),
    ((image(6, 6), t(4, 2, 3, 3), None, *geometry()), "3 channels with a filter of dims [4, 2, 3, 3] in 1 groups"),
    ((image(6, 6), t(4, 1, 3, 3), None, *geometry(groups=2)), "3 channels with a filter of dims [4, 1, 3, 3] in 2"),
    ((image(6, 6), t(3, 4, 3, 3), None, *geometry(2, 1, transposed=True)), ""),
    ((image(6, 6), t(3, 4, 3, 3), None, *geometry(2, 2, transposed=True)), "output padding [2, 2] with strides [2, 2]"),
]

PRODUCTS = [
    ("mm", (t(2, 3), t(3, 4)), {}, ""),
    ("mm", (t(2, 3), t(4, 4)), {}, "a product of dims [2, 3] and [4, 4]"),
    ("mm", (t(1, 2, 3), t(1, 3, 4)), {}, "a product of dims [1, 2, 3] and [1, 3, 4]"),
    ("bmm", (t(2, 2, 3), t(5, 3, 4)), {}, "batches [2] and [5]"),
    ("mm.out", (t(2, 3), t(3, 4)), {"out": t(4, 2)}, "an output of other dims, or one that overlaps"),
    ("addmm", (t(5), t(2, 3), t(3, 4)), {}, "a summand of dims [5] for a result of [1, 2, 4]"),
    ("addmm", (t(1, 1, 2, 4), t(2, 3), t(3, 4)), {}, "a summand of dims [1, 1, 2, 4]"),
    ("_int_mm", (t(32, 8, dtype=I8), t(8, 8, dtype=I8)), {}, ""),
    ("_int_mm", (t(32, 8, dtype=I32), t(8, 8, dtype=I8)), {}, "int32 and int8, where int8 is expected"),
    ("_int_mm", (t(32, 8, dtype=I8), t(8, 8, dtype=I32)), {}, "int8 and int32, where int8 is expected"),
    ("_int_mm.out", (t(32, 8, dtype=I8), t(8, 8, dtype=I8)), {"out": t(32, 8)}, "an output of other dims or another"),
    ("_int_mm.out", (t(32, 8, dtype=I8), t(8, 8, dtype=I8)), {"out": t(8, 32, dtype=I32)}, "an output of other dims"),
]


def scaled(**changes: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    given = {"a": t(16, 32, dtype=FP8), "b": t(16, 32, dtype=FP8).t(), "scale_a": t(), "scale_b": t()} | changes
    options = {"out_dtype": BF16} | {key: value for key, value in given.items() if key not in SCALED}
    return tuple(given[key] for key in SCALED), options


SCALED = ("a", "b", "scale_a", "scale_b")
SCALED_PRODUCTS = [
    ({}, ""),
    ({"a": t(16, 32, dtype=I8)}, "int8 and float8_e4m3fn to bfloat16"),
    ({"b": t(32, 16, dtype=F16)}, "float8_e4m3fn and float16 to bfloat16"),
    ({"out_dtype": FP8}, "float8_e4m3fn and float8_e4m3fn to float8_e4m3fn"),
    ({"scale_a": t(dtype=F16)}, "a scale of the result, or scales of blocks"),
    ({"scale_result": t()}, "a scale of the result, or scales of blocks"),
    ({"scale_a": t(16, 2)}, "scales of dims [16, 2], where one or [16, 1] are expected"),
    ({"bias": t(15, dtype=BF16)}, "a bias of dims [15]"),
]

NORMS = [
    ("native_batch_norm", (t(4, 3), None, None, None, None, True, 0.1, 1e-5), ""),
    ("native_batch_norm", (t(4), None, None, None, None, True, 0.1, 1e-5), "float32 of rank 1, where floats of rank 2"),
    ("native_batch_norm", (t(4, 3, dtype=I32), None, None, None, None, True, 0.1, 1e-5), "int32 of rank 2"),
    ("native_batch_norm", (t(4, 3), t(3, dtype=I32), None, None, None, True, 0.1, 1e-5), "parameters or statistics of"),
    ("native_batch_norm", (t(4, 3), None, None, t(3), None, False, 0.1, 1e-5), "inference without running statistics"),
    ("native_batch_norm_backward", (t(4, 3), t(4, 3), None, None, None, t(3), t(3), True, 1e-5, ALL), ""),
    ("native_batch_norm_backward", (t(4, 3), t(4, 3), None, None, None, t(3), t(3), False, 1e-5, ALL),
     "gradients of the inference phase"),
    ("native_batch_norm_backward", (t(4, 3), t(4, 3), None, None, None, None, t(3), True, 1e-5, ALL),
     "gradients of the inference phase"),
    ("native_batch_norm_backward", (t(4, 3), t(4, 3, dtype=F16), None, None, None, t(3), t(3), True, 1e-5, ALL),
     "a gradient of float32 for float16"),
    ("native_layer_norm", (t(4, 6), [6], None, None, 1e-5), ""),
    ("native_layer_norm", (t(4, 6, dtype=I32), [6], None, None, 1e-5), "int32 with others, where float types are"),
    ("native_layer_norm", (t(4, 6), [6], t(6, dtype=I32), None, 1e-5), "float32 with others, where float types are"),
    ("native_layer_norm", (t(4, 6), [4], None, None, 1e-5), "a norm over [4] of dims [4, 6]"),
    ("native_layer_norm", (t(4, 6), [], None, None, 1e-5), "a norm over [] of dims [4, 6]"),
    ("native_layer_norm", (t(4, 3, 12)[:, :, ::2], [3, 6], None, None, 1e-5), ""),
    ("native_layer_norm", (t(4, 3, 12)[:, :, :6], [3, 6], None, None, 1e-5), "which do not make one axis"),
    ("native_layer_norm", (t(4, 3, 6).transpose(0, 1), [6], t(6), None, 1e-5), ""),
    ("native_layer_norm", (t(4, 3, 6).transpose(0, 1), [6], None, None, 1e-5), "in a norm without scale and bias"),
    ("native_layer_norm_backward", (t(4, 6), t(4, 6), [6], t(4, 1), t(4, 1), None, None, ALL), ""),
    ("native_layer_norm_backward", (t(4, 6), t(4, 6), [6], t(4, 2)[:, :1], t(4, 1), None, None, ALL),
     "strides [2, 1] of [4, 1], where contiguous ones are expected"),
    ("native_layer_norm_backward", (t(4, 6, dtype=F16), t(4, 6), [6], t(4, 1), t(4, 1), None, None, ALL),
     "a gradient of float16 for float32"),
    ("native_group_norm", (t(2, 4, 5), None, None, 2, 4, 5, 2, 1e-5), ""),
    ("native_group_norm", (t(2, 4, 5, dtype=I32), None, None, 2, 4, 5, 2, 1e-5), "int32 with others, where float"),
    ("native_group_norm", (t(2, 4, 5), t(4, dtype=I32), None, 2, 4, 5, 2, 1e-5), "float32 with others, where float"),
    ("native_group_norm", (t(2, 3, 5), None, None, 2, 4, 5, 2, 1e-5), "dims [2, 3, 5] with 4 channels"),
    ("native_group_norm_backward", (t(2, 4, 5, dtype=F16), t(2, 4, 5), t(2, 2), t(2, 2), None, 2, 4, 5, 2, ALL),
     "a gradient of float16 for float32"),
]  # fmt: skip

POOLS = [
    ("max_pool2d_with_indices", (image(6, 6), [2], [], [0], [1], False), ""),
    ("max_pool2d_with_indices", (image(6, 6, dtype=I32), [2], [], [0], [1], False), "int32, where a float type of"),
    ("max_pool2d_with_indices", (image(6, 6), [2], [], [0], [1, 2], False), "dilation [1, 2], where windows without"),
    ("max_pool2d_with_indices", (t(6, 6), [2], [], [0], [1], False), "pooling of rank 2"),
    ("max_pool2d_with_indices", (t(1, 2, 3, 6, 6), [2], [], [0], [1], False), "pooling of rank 5"),
    ("max_pool2d_with_indices", (image(6, 6), [2], [0], [0], [1], False), "windows [2, 2] with strides [0, 0]"),
    ("max_pool2d_with_indices", (image(6, 6), [2], [2], [2], [1], False), "and padding [2, 2]"),
    ("max_pool2d_with_indices", (image(6, 6), [9], [], [1], [1], False), "a window of 9 in an image of 6 with its"),
    ("avg_pool2d", (image(6, 6), [2], [], [0], False, True, None), ""),
    ("avg_pool2d", (image(6, 6), [2], [], [0], False, True, 3), "an average with a divisor of the caller's"),
    ("avg_pool2d", (image(6, 6), [2], [3], [1], True, True), ""),
    ("avg_pool2d", (image(8, 8), [3], [2], [1], True, True), "an average that counts the padding, with a last window"),
    ("avg_pool2d", (image(8, 8), [3], [2], [1], True, False), ""),
    ("_adaptive_avg_pool2d", (image(6, 6), [4, 4]), ""),
    ("_adaptive_avg_pool2d", (image(6, 6), [0, 4]), "adaptive pooling of dims [2, 3, 6, 6] to [0, 4]"),
    ("_adaptive_avg_pool2d", (t(6, 6), [4, 4]), "adaptive pooling of dims [6, 6] to [4, 4]"),
    ("adaptive_max_pool2d", (image(6, 6), [3, 2]), ""),
    ("adaptive_max_pool2d", (image(6, 6), [4, 2]), "adaptive maxima over windows of several sizes"),
    ("upsample_nearest2d", (image(6, 6), [12, 12]), ""),
    ("upsample_nearest2d", (image(6, 6), [0, 12]), "interpolation from [6, 6] to [0, 12]"),
    ("upsample_nearest2d", (image(6, 6), [12], None), "interpolation from [6, 6] to [12]"),
    ("upsample_nearest1d", (image(6), [12], 2.3), "positions of 12 outputs in 6 that fp32 rounds to neighbours"),
    ("upsample_linear1d", (image(6), [12], False, 2.0), ""),
    ("upsample_linear1d", (image(6), [12], False, 2.3), "a scale of 2.3 that is not that of the sizes"),
    ("upsample_linear1d", (image(1), [12], True), "corners of an axis with one element"),
    ("_softmax", (t(2, 3), 2, False), "axis 2 of rank 2"),
    ("_softmax", (t(2, 3), -3, False), "axis -3 of rank 2"),
    ("_softmax", (t(2, 3, dtype=I32), 1, False), "int32, where a float type of"),
    ("_softmax_backward_data", (t(2, 3), t(2, 3), 1, F32), ""),
    ("_softmax_backward_data", (t(2, 3), t(2, 3), 1, I32), "a gradient of int32"),
]

HEADS = t(2, 2, 8, 16, dtype=F16)
ATTENTION = [
    ((HEADS, HEADS, HEADS, 0.0, True, False), ""),
    ((HEADS.float(),) * 3, "float32, where float16 or bfloat16 is expected"),
    ((HEADS, HEADS.bfloat16(), HEADS), "bfloat16, where float16 or bfloat16 is expected"),
    ((HEADS[0],) * 3, "dims [2, 8, 16], where [batch, heads, rows, size] are expected"),
    ((HEADS, HEADS, HEADS, 0.1), "dropout, whose random numbers are torch's own"),
    ((HEADS, HEADS[:, :, :4], HEADS[:, :, :4], 0.0, True), "a causal mask of 8 queries and 4 keys"),
    ((HEADS, HEADS, HEADS, 0.0, False, True), "a mask to debug with"),
]


@pytest.mark.parametrize(("arguments", "reason"), CONVOLUTION)
def test_convolutions(arguments: tuple[Any, ...], reason: str) -> None:
    found = reason_of("convolution", *arguments)
    assert found.startswith(reason) if reason else not found


def test_gradients_of_convolutions_have_dims_of_the_output() -> None:
    x, w = image(6, 6), t(4, 3, 3, 3)
    for dims, reason in (
        ((4, 4), ""),
        ((5, 4), "a gradient with dims [2, 4, 5, 4], which are not those of the output"),
    ):
        assert reason_of("convolution_backward", t(2, 4, *dims), x, w, None, *geometry(), ALL) == reason


@pytest.mark.parametrize(("name", "arguments", "options", "reason"), PRODUCTS)
def test_products(name: str, arguments: tuple[Any, ...], options: dict[str, Any], reason: str) -> None:
    found = reason_of(name, *arguments, **options)
    assert found.startswith(reason) if reason else not found


@pytest.mark.parametrize(("first", "is_taken"), [(0, False), (5, False), (6, True), (-11, False), (-12, True)])
def test_outputs_may_not_overlap_operands(first: int, is_taken: bool) -> None:
    """An output of 12 elements beside an operand of 6, of which either may begin first."""
    memory = torch.zeros(40)
    a, out = memory[12:18].view(2, 3), memory[12 + first : 24 + first].view(2, 6)
    reason = "an output of other dims, or one that overlaps an operand"
    assert reason_of("mm.out", a, t(3, 6), out=out) == ("" if is_taken else reason)
    assert reason_of("mm.out", t(2, 3), torch.zeros(3, 6), out=t(2, 6)) == ""
    assert reason_of("mm.out", t(2, 3), out.view(6, 2)[:3], out=out[:, :2]) == reason


@pytest.mark.parametrize(("changes", "reason"), SCALED_PRODUCTS)
def test_scaled_products(changes: dict[str, Any], reason: str) -> None:
    arguments, options = scaled(**changes)
    assert reason_of("_scaled_mm", *arguments, **options) == reason


@pytest.mark.parametrize(("name", "arguments", "reason"), [*NORMS, *POOLS])
def test_norms_and_pools(name: str, arguments: tuple[Any, ...], reason: str) -> None:
    found = reason_of(name, *arguments)
    assert reason in found if reason else not found


@pytest.mark.parametrize(("arguments", "reason"), ATTENTION)
def test_attention(arguments: tuple[Any, ...], reason: str) -> None:
    assert reason_of("_scaled_dot_product_flash_attention", *arguments) == reason


def test_gradients_of_attention() -> None:
    stats, bias = t(2, 2, 32), t(2, 2, 8, 8, dtype=F16)
    given = HEADS, HEADS, HEADS, HEADS, bias, HEADS, stats, None, None, 0.0
    for mask, reason in (([*ALL, False], ""), ([*ALL, True], "a gradient of the bias")):
        assert reason_of("_scaled_dot_product_efficient_attention_backward", *given, mask) == reason


def test_addresses() -> None:
    """Elements are aligned, and in attention the rows that kernels copy as a whole."""
    for alignment, reason in ((4, ""), (2, "an address that is no multiple of 4 bytes")):
        assert reason_of("mm", t(2, 3), t(3, 4), alignment=alignment) == reason
    found = reason_of("_scaled_dot_product_flash_attention", HEADS, HEADS, HEADS, alignment=8)
    assert found == "an address that is no multiple of 16 bytes"


def test_types_that_kernels_do_not_have() -> None:
    sketch = sketching.Sketch((t(2, dtype=torch.complex64),), 16)
    with pytest.raises(sketching.Declined, match="complex64, which lowdnn's kernels do not have"):
        sketch.at(0)


def test_parts_of_a_tensor_are_aligned_as_their_offset_is() -> None:
    sketch = sketching.Sketch((t(4, dtype=I64),), 16)
    assert [sketch.at(sketch.part(0, offset, (1,), I64)).alignment_bytes for offset in (0, 8, 16)] == [16, 8, 16]


def test_devices_and_sizes() -> None:
    from lowdnn.torch.operation import ABSENT
    from lowdnn.torch.planning import _device_of

    assert _device_of((t(2), ABSENT, t(3))) == torch.device("cpu")
    with pytest.raises(sketching.Declined, match="tensors on cpu and meta"):
        _device_of((t(2), t(2).to("meta")))
    with pytest.raises(sketching.Declined, match="a tensor without elements"):
        _device_of((t(2), t(2, 0)))


def test_statistics_of_inference_are_those_of_the_native_kernel_on_a_gpu() -> None:
    from lowdnn.torch.operations.batch_norm import forward

    sketch = SimpleNamespace(tensors=(SimpleNamespace(device=SimpleNamespace(type="cuda")),))
    with pytest.raises(sketching.Declined, match="statistics of the inference phase"):
        forward(sketch, False, 1e-5)
