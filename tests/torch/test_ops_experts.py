"""Grouped products of experts and block-scale quantisation."""

from __future__ import annotations

from typing import Any

import pytest

from lowdnn.status import BadParamError, NotSupportedError
from tests.torch.own_operations import check_compiled, check_registration, check_values
from tests.torch.support import Face

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")
ops: Any = pytest.importorskip("lowdnn.torch.ops")

_GROUPS = (0, 7, 7, 20)


def first_rows(face: Face) -> Any:
    return torch.tensor(_GROUPS, dtype=torch.int32, device=face.torch_device)


def by_expert(rows: Any, weight: Any) -> Any:
    ends = (*_GROUPS[1:], len(rows))
    return torch.cat([rows[a:b] @ weight[e] for e, (a, b) in enumerate(zip(_GROUPS, ends, strict=True))])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("form", ["in place", "gather", "scatter"])
def test_grouped_products(face: Face, dtype: Any, form: str) -> None:
    x, weight = face.reals(26, 16, dtype=dtype), face.reals(4, 16, 24, dtype=dtype)
    first, routing = first_rows(face), {}
    index = torch.randperm(26, device=face.torch_device, dtype=torch.int32)
    if form == "gather":
        index = torch.randint(26, (33,), device=face.torch_device, dtype=torch.int32)
    if form != "in place":
        routing = {form: index}

    def reference(x: Any, weight: Any) -> Any:
        if form == "gather":
            return by_expert(x[index], weight)
        y = by_expert(x, weight)
        return y if form == "in place" else torch.zeros_like(y).index_copy(0, index.long(), y)

    check_values(
        face, lambda x, weight: ops.grouped_matmul(x, weight, first, **routing), reference, x, weight,
        taken=("grouped_matmul", "grouped_matmul_weights"), roundings=16 if dtype != torch.float32 else 64,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("scale_dtype", [torch.float8_e8m0fnu, torch.float32])
@pytest.mark.parametrize("shape", [(3, 5, 96), (7, 40)])
def test_blocks_are_quantised_bit_for_bit(face: Face, dtype: Any, scale_dtype: Any, shape: tuple[int, ...]) -> None:
    """On lowdnn as by PyTorch's operations; what comes back is close to x."""
    x = face.reals(*shape, dtype=torch.bfloat16)
    x[0] = 0
    x = x * torch.logspace(-6, 6, shape[-1], device=x.device, dtype=x.dtype)
    native = torch.ops.lowdnn.block_scale_quantize(x.cpu(), 32, dtype, scale_dtype)
    before = face.counts()
    with face.enable():
        y, scale = ops.block_scale_quantize(x, 32, dtype=dtype, scale_dtype=scale_dtype)
        back = ops.block_scale_dequantize(y, scale, 32, dtype=torch.float32)
    for name in ("lowdnn::block_scale_quantize", "lowdnn::block_scale_dequantize"):
        assert face.counts()[name, ""] == before.get((name, ""), 0) + 1
    for own, other in zip((y, scale), native, strict=True):
        assert (own.shape, own.dtype) == (other.shape, other.dtype)
        assert torch.equal(own.cpu().float(), other.float())
    blocks = torch.nn.functional.pad(x.float(), (0, -shape[-1] % 32)).unflatten(-1, (-1, 32)).abs().amax(-1)
    largest = blocks.repeat_interleave(32, -1)[..., : shape[-1]]
    rounding = 2.0**-3 if dtype == torch.float8_e5m2 else 2.0**-4
    assert ((back - x.float()).abs() <= rounding * x.float().abs() + largest * 2.0**-14).all()


def test_registration(face: Face) -> None:
    x, weight = face.reals(26, 8, dtype=torch.float32), face.reals(4, 8, 12, dtype=torch.float32)
    first, index = first_rows(face), torch.randperm(26, device=face.torch_device, dtype=torch.int32)
    check_registration(face, "grouped_matmul", x.requires_grad_(), weight.requires_grad_(), first, None, index)
    check_registration(face, "grouped_matmul", x, weight, first, index, None)
    check_registration(face, "grouped_matmul_weights", face.reals(26, 12, dtype=torch.float32), x, first)
    rows = x.detach()
    check_registration(face, "block_scale_quantize", rows, 4, torch.float8_e4m3fn, torch.float32)
    y, scale = torch.ops.lowdnn.block_scale_quantize(rows, 4, torch.float8_e4m3fn, torch.float32)
    check_registration(face, "block_scale_dequantize", y, scale, 4, torch.float16, without=("test_schema",))


def test_second_gradients_of_grouped_products() -> None:
    x, weight = torch.randn(6, 3, dtype=torch.float64), torch.randn(2, 3, 2, dtype=torch.float64)
    first, index = torch.tensor([0, 4], dtype=torch.int32), torch.tensor([5, 0, 1, 3, 2, 4], dtype=torch.int32)
    for routing in ({}, {"gather": index}, {"scatter": index}):
        call = lambda x, weight, routing=routing: ops.grouped_matmul(x, weight, first, **routing)  # noqa: E731
        leaves = (x.requires_grad_(), weight.requires_grad_())
        assert torch.autograd.gradcheck(call, leaves)
        assert torch.autograd.gradgradcheck(call, leaves)


def test_compiled(face: Face) -> None:
    x, weight = face.reals(26, 8, dtype=torch.float32), face.reals(4, 8, 8, dtype=torch.float32)
    first = first_rows(face)
    check_compiled(face, lambda x, weight: ops.grouped_matmul(x, weight, first) * 2, x, weight)


def test_wrong_arguments(face: Face) -> None:
    x, weight, first = torch.zeros(6, 8), torch.zeros(4, 8, 12), torch.tensor(_GROUPS, dtype=torch.int32)
    for text, call in {
        r"grouped_matmul\.weight\.shape: expected \[experts, 8, N\]": lambda: ops.grouped_matmul(x, x, first),
        r"grouped_matmul\.first_row\.shape: expected \[4\]": lambda: ops.grouped_matmul(x, weight, first[:3]),
        r"grouped_matmul\.first_row: expected a tensor of int32": lambda: ops.grouped_matmul(x, weight, first.long()),
        r"grouped_matmul\.first_row: expected a tensor of int32, got NoneType": lambda: ops.grouped_matmul(
            x, weight, None
        ),
        r"grouped_matmul\.weight: expected a tensor of torch.float32, as x": lambda: ops.grouped_matmul(
            x, weight.half(), first
        ),
        r"grouped_matmul\.scatter: expected None beside gather": lambda: ops.grouped_matmul(
            x, weight, first, gather=first[:1].expand(6), scatter=first[:1].expand(6)
        ),
        r"block_scale_quantize\.dtype: expected torch.float8_e4m3fn or": lambda: ops.block_scale_quantize(
            x, dtype=torch.float16
        ),
        r"block_scale_quantize\.block_size: expected 1 or more, got 0": lambda: ops.block_scale_quantize(x, 0),
        r"block_scale_dequantize\.scale\.shape: expected \[6, 1\]": lambda: ops.block_scale_dequantize(x, x),
    }.items():
        with pytest.raises(BadParamError, match=text):
            call()
    y, _ = ops.block_scale_quantize(x.requires_grad_())
    with pytest.raises(NotSupportedError, match="detach the tensor before it"):
        y.float().sum().backward()
