"""A convolution as a forward convolution over parts, or exchanged axes, of its tensors.

A kernel that knows forward convolutions of any strides computes gradients through such a view: only extents, strides
and base addresses differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from lowdnn.enums import PointwiseMode
from lowdnn.graph.pattern import Anchored, PointwiseDag
from lowdnn.ops.base import inputs_of, outputs_of
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, Scalar, Struct, TensorPointer


@dataclass(frozen=True)
class ForwardView:
    """A forward convolution over parts of a graph's tensors.

    image, filter: names in messages of the forward convolution's x and w.
    offsets: bytes from a tensor's base to its part, by uid.
    """

    image: str
    filter: str
    matched: Anchored[ConvolutionForward]
    offsets: Mapping[int, int] = field(default_factory=dict)

    def place(self, argument: Argument) -> Argument:
        """``argument`` with the pointers to tensors moved to their parts."""
        return self._moved(argument) if any(self.offsets.values()) else argument

    def _moved(self, argument: Argument) -> Argument:
        if isinstance(argument, Struct):
            fields = [item if isinstance(item, Scalar) else self._moved(item) for item in argument.fields]
            return Struct(tuple(fields))
        if isinstance(argument, TensorPointer):
            return TensorPointer(argument.uid, argument.offset_bytes + self.offsets.get(argument.uid, 0))
        return argument


def exchanged(tensor: Tensor) -> Tensor:
    """``tensor`` with its first two axes exchanged."""
    first, second, *others = range(tensor.rank)
    order = (second, first, *others)
    dims = tuple(tensor.dims[axis] for axis in order)
    return replace(tensor, dims=dims, strides=tuple(tensor.strides[axis] for axis in order))


def tensors_of(dag: PointwiseDag) -> Iterator[Tensor]:
    """The tensors that the DAG reads and writes; a tensor may occur several times."""
    if dag.anchor is not None:
        yield dag.anchor
    for op in dag.operations:
        yield from inputs_of(op).values()
        yield from outputs_of(op).values()


def has_index(dag: PointwiseDag) -> bool:
    """Whether an index of an element is a value of the DAG, which a view would change."""
    return any(op.mode is PointwiseMode.GEN_INDEX for op in dag.operations)


def dag_over(dag: PointwiseDag, views: Mapping[int, Tensor], dims: tuple[int, ...]) -> PointwiseDag:
    """``dag`` with every tensor replaced by the one of the same uid in ``views``, over ``dims``."""
    operations = []
    for op in dag.operations:
        ports = inputs_of(op) | outputs_of(op)
        changes = {port: views[tensor.uid] for port, tensor in ports.items()}
        operations.append(replace(op, **changes))  # type: ignore[arg-type]
    return replace(
        dag,
        dims=dims,
        operations=tuple(operations),
        anchor=None if dag.anchor is None else views[dag.anchor.uid],
        loads=tuple(views[tensor.uid] for tensor in dag.loads),
        scalars=tuple(views[tensor.uid] for tensor in dag.scalars),
        stores=tuple(views[tensor.uid] for tensor in dag.stores),
    )
