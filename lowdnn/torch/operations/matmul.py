"""Matrix products, with a sum: beta * c + alpha * (a @ b), of matrices or of batches of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowdnn.enums import PointwiseMode
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.torch.operation import ABSENT, Arguments, Overload, Result
from lowdnn.torch.sketch import Declined, Dims, Sketch, check_floats, compute_type_of, data_type_of

_A, _B, _C, _OUT = 0, 1, 2, 3


def read_product(a: Any, b: Any, *, out: Any = None) -> Arguments:
    if out is None:  # most calls: tensors that are not there would cost their key some time
        return (a, b), (0, 1, False)
    return (a, b, ABSENT, out), (0, 1, overlaps(out, a, b))


def read_sum(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None) -> Arguments:
    if out is None:
        return (a, b, c), (beta, alpha, False)
    return (a, b, c, out), (beta, alpha, overlaps(out, a, b))


def of_rank(rank: int) -> Callable[..., Result]:
    """The sketch of products of tensors with this rank: 2, or 3 for batches."""

    def product(sketch: Sketch, beta: float, alpha: float, overlaps: bool) -> Result:
        a, b, c, out = (*sketch.tensors, ABSENT, ABSENT)[:4]
        check_floats(a, b, c, out)
        shape = product_shape(a, b, rank)
        if overlaps or (out.shape is not None and tuple(out.shape) != shape):
            raise Declined("an output of other dims, or one that overlaps an operand")
        y = sketch.allocate(shape, a.dtype) if out.shape is None else _OUT
        target = as_batch(sketch, y)
        compute = compute_type_of(data_type_of(a.dtype))
        adds = c.shape is not None and beta != 0
        sum_of_products = target if not adds and alpha == 1 else sketch.virtual(target.dims, compute)
        left, right = as_batch(sketch, _A), as_batch(sketch, _B)
        sketch.add(MatmulOperation(Matmul(compute), left, right, sum_of_products))
        if adds:
            alphas = (float(alpha), float(beta))
            sketch.pointwise(
                PointwiseMode.ADD, target, sum_of_products, _repeated(sketch, c, target.dims), alphas=alphas
            )
        elif alpha != 1:
            sketch.pointwise(PointwiseMode.MUL, target, sum_of_products, sketch.constant(float(alpha), 3, compute))
        sketch.end_step()
        return y

    return product


def product_shape(a: Any, b: Any, rank: int) -> Dims:
    if len(a.shape) != rank or len(b.shape) != rank or a.shape[-1] != b.shape[-2]:
        raise Declined(f"a product of dims {list(a.shape)} and {list(b.shape)}")
    if a.shape[:-2] != b.shape[:-2]:
        raise Declined(f"batches {list(a.shape[:-2])} and {list(b.shape[:-2])}")
    return (*a.shape[:-1], b.shape[-1])


def as_batch(sketch: Sketch, place: int) -> Tensor:
    """The matrices at a place as a tensor of rank 3."""
    tensor = sketch.at(place)
    if tensor.rank == 3:
        return tensor
    rows, columns = tensor.strides
    return sketch.at(place, (1, *tensor.dims), (tensor.dims[0] * rows if rows else 0, rows, columns))


def _repeated(sketch: Sketch, c: Any, dims: Dims) -> Tensor:
    """c with extents of 1 where it repeats; what it lacks in axes stands before its own."""
    shape, strides = tuple(c.shape), tuple(c.stride())
    if len(shape) > 3 or any(own not in (1, extent) for own, extent in zip(shape[::-1], dims[::-1], strict=False)):
        raise Declined(f"a summand of dims {list(shape)} for a result of {list(dims)}")
    missing = 3 - len(shape)
    return sketch.at(_C, (1,) * missing + shape, (0,) * missing + strides)


def overlaps(out: Any, *operands: Any) -> bool:
    """Whether the output has memory in common with an operand, or with what lies between an operand's elements."""
    if out is None:
        return False
    begin, end = _range(out)
    return any(begin < other_end and other < end for other, other_end in map(_range, operands))


def _range(tensor: Any) -> tuple[int, int]:
    """The addresses of a tensor's first byte, and of the one behind its last."""
    begin = tensor.data_ptr()
    if not tensor.numel():
        return begin, begin
    last = sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()


OVERLOADS = (
    Overload("mm", "matmul", read_product, of_rank(2), kind="matmul"),
    Overload("mm.out", "matmul", read_product, of_rank(2), kind="matmul"),
    Overload("bmm", "matmul", read_product, of_rank(3), kind="matmul"),
    Overload("bmm.out", "matmul", read_product, of_rank(3), kind="matmul"),
    Overload("addmm", "matmul", read_sum, of_rank(2), kind="matmul"),
    Overload("addmm.out", "matmul", read_sum, of_rank(2), kind="matmul"),
    Overload("baddbmm", "matmul", read_sum, of_rank(3), kind="matmul"),
    Overload("baddbmm.out", "matmul", read_sum, of_rank(3), kind="matmul"),
)
