"""Matrix products, and lists of independent ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Self

from lowdnn.cases import exits, steps, text
from lowdnn.cases.base import Case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.chains import (
    PROLOGUE_GROWTH,
    broadcast_dims,
    contraction_output,
    contraction_type,
    epilogue_of,
    prologue_of,
    stores,
    virtual_type,
)
from lowdnn.cases.text import key
from lowdnn.enums import (
    DataType,
)
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError

#: The memory orders of a and b.
_LAYOUTS = ("nn", "nt", "tn", "tt")


@dataclass(frozen=True)
class MatmulCase(Case):
    """c = a b, then the epilogue. layout: memory order of a and b, n as the formula has it or t transposed.

    b: batches of a, and of b where ``bb`` gives no others.
    prologue: steps before the input that ``before`` names, which lies in memory in type ``raw``; their operands are of
    fp32, for each k of a or each n of b.
    exits: reductions of the epilogue's result: sum (over all axes but the last), rowsum, rowmax (over the last),
    amax.
    """

    family: ClassVar[str] = "matmul"

    m: int = key(text.integer(0))
    n: int = key(text.integer(0))
    k: int = key(text.integer(0))
    b: tuple[int, ...] = key(text.extents(0, 6), ())
    bb: tuple[int, ...] = key(text.extents(0, 6), ())
    broadcast: str = key(text.choice("none", "a", "b"), "none")
    layout: str = key(text.choice(*_LAYOUTS), "nn")
    dtype: DataType = key(text.data_type(), DataType.FLOAT)
    out: DataType | None = key(text.data_type(), None)
    compute: DataType | None = key(text.sum_type(), None)
    virtual: DataType | None = key(text.data_type(), None)
    align: int = key(text.integer(1), 16)
    prologue: tuple[str, ...] = key(text.names(tuple(steps.STEPS)), ())
    before: str = key(text.choice("a", "b"), "a")
    raw: DataType | None = key(text.data_type(), None)
    epilogue: tuple[str, ...] = key(text.names(steps.NAMES), ())
    exits: tuple[str, ...] = key(text.names(tuple(n for n in exits.NAMES if n != exits.GEN_STATS)), ())

    def graph(self) -> OperationGraph:
        builder = CaseBuilder(alignment_bytes=self.align, virtual_type=self.virtual)
        compute = self.compute or contraction_type(self.dtype)
        a_layout, b_layout = (Layout.TRANSPOSED if letter == "t" else Layout.ROW_MAJOR for letter in self.layout)
        ones = (1,) * len(self.b)
        a_batch = ones if self.broadcast == "a" else self.b
        b_batch = ones if self.broadcast == "b" else self.bb or self.b
        a = self._input(builder, (*a_batch, self.m, self.k), a_layout, "a")
        b = self._input(builder, (*b_batch, self.k, self.n), b_layout, "b")
        store, final, steps = stores(self.epilogue, self.out or contraction_output(self.dtype))
        c = builder.matmul(a, b, compute_type=compute, store=store)
        columns = (*(1,) * (len(self.b) + 1), self.n)
        chain = epilogue_of(steps, c, columns, self.dtype, compute)
        result = chain.build(builder, c, final, Layout.ROW_MAJOR)
        exits.build(builder, self.exits, result, kept_axis=c.rank - 1, compute_type=chain.compute_type)
        return builder.graph()

    @classmethod
    def guesses(cls, graph: OperationGraph) -> Iterator[Self]:
        """Without a prologue and without exits."""
        op, *behind = graph.operations
        if not isinstance(op, MatmulOperation):
            return
        a, b, c = op.a, op.b, op.c
        chain = steps.names_of(behind, c, c.dims, broadcast_dims(c.dims, "row"))
        if chain is None:
            return
        for layout in _LAYOUTS:
            yield cls(
                m=a.dims[-2],
                n=b.dims[-1],
                k=a.dims[-1],
                b=a.dims[:-2],
                bb=b.dims[:-2],
                layout=layout,
                dtype=a.data_type,
                out=graph.outputs[-1].data_type,
                compute=op.compute_type,
                virtual=virtual_type(graph),
                align=a.alignment_bytes,
                epilogue=chain,
            )

    @property
    def length(self) -> int:
        return self.k

    @property
    def is_exact(self) -> bool:
        elements = prod(map(max, self.b, self.bb or self.b)) * self.m * self.n
        chain = (*self.prologue, *self.epilogue)
        return steps.is_exact(chain) and exits.is_exact(self.exits, self.length, elements)

    @property
    def exact_length(self) -> int:
        return exits.exact_length(self.exits, PROLOGUE_GROWTH * self.length if self.prologue else self.length)

    @property
    def sum_type(self) -> DataType:
        return self.compute or DataType.FLOAT

    def _input(self, builder: CaseBuilder, dims: tuple[int, ...], layout: Layout, name: str) -> Tensor:
        if not self.prologue or name != self.before:
            return builder.tensor(dims, self.dtype, layout=layout, name=name)
        lies = builder.tensor(dims, self.raw or self.dtype, layout=layout, name=name)
        return prologue_of(builder, self.prologue, lies, broadcast_dims(dims, "row"), self.dtype)


@dataclass(frozen=True)
class MatmulListCase(Case):
    """Independent products of m[i] x n[i] x k[i], each with a chain of its own behind it."""

    family: ClassVar[str] = "matmuls"

    m: tuple[int, ...] = key(text.extents(1, 1024))
    n: tuple[int, ...] = key(text.extents(1, 1024))
    k: tuple[int, ...] = key(text.extents(1, 1024))
    layout: str = key(text.choice(*_LAYOUTS), "nn")
    dtype: DataType = key(text.data_type(), DataType.FLOAT)
    out: DataType | None = key(text.data_type(), None)
    align: int = key(text.integer(1), 16)
    epilogue: tuple[str, ...] = key(text.names(steps.NAMES), ())

    def graph(self) -> OperationGraph:
        if not len(self.m) == len(self.n) == len(self.k):
            raise BadParamError.at(
                "matmuls.n, k", expected=f"{len(self.m)} extents as m", got=[list(self.n), list(self.k)]
            )
        builder = CaseBuilder(alignment_bytes=self.align)
        compute = contraction_type(self.dtype)
        a_layout, b_layout = (Layout.TRANSPOSED if letter == "t" else Layout.ROW_MAJOR for letter in self.layout)
        for m, n, k in zip(self.m, self.n, self.k, strict=True):
            a = builder.tensor((1, m, k), self.dtype, layout=a_layout, name="a")
            b = builder.tensor((1, k, n), self.dtype, layout=b_layout, name="b")
            store, final, steps = stores(self.epilogue, self.out or contraction_output(self.dtype))
            c = builder.matmul(a, b, compute_type=compute, store=store)
            epilogue_of(steps, c, (1, 1, n), self.dtype, compute).build(builder, c, final, Layout.ROW_MAJOR)
        return builder.graph()

    @property
    def length(self) -> int:
        return max(self.k)

    @property
    def is_exact(self) -> bool:
        return steps.is_exact(self.epilogue)
