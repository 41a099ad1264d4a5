"""A pointwise DAG as the CUDA C++ text of one functor: the header ``generated.cuh`` that a kernel includes.

The text holds structure only (operations, types, which axes a tensor repeats along, stride classes along the vector
axis); strides, scalars, clips and constants are run-time fields of ``Functor::Args``, so that a new shape or constant
is not a new kernel. Every tensor's value is rounded to its data type, stored or not. No name given by a user reaches
the text.

    struct Functor {
      enum : int { RANK };
      typedef ... Accumulator;  // where the DAG has an anchor: the type of the value handed in, before its rounding
      typedef ... Result;       // where the DAG has a result: the type in which it is handed back
      typedef f32 Reduced;         // where the kernel reduces a value of the DAG
      typedef ... Handed0;      // where the kernel hands in loaded tensors: the type in which it holds them
      struct Args;              // pointers, strides, scalars
      struct Cursor;            // element offsets of one row: of all coordinates but the vector axis's
      template <int V> struct Loaded;  // what was read for V elements
      static Cursor cursor(const Args&, const i64 (&coordinate)[RANK]);
      template <int V> static void load(const Args&, const Cursor&, i64 column, int valid, Loaded<V>& in);
      template <int V> static void copy(const Args&, const Cursor&, i64 column, int valid, Loaded<V>& copied);
      template <int V> static void fetch(const Loaded<V>& copied, Loaded<V>& in);
      static const void* address(const Args&, const Cursor&, i64 column);
      template <int V> static void finish(const Args&, const Cursor&, i64 column, int valid, const Loaded<V>& in,
                                          const Accumulator (&accumulator)[V], Result (&result)[V]);
      template <int V> static void apply(const Args&, const Cursor&, i64 column, int valid,
                                         const Accumulator (&accumulator)[V], Result (&result)[V]);
    };

``apply`` is ``load`` and then ``finish``, for the elements ``column .. column + V - 1`` along the vector axis, of which
the first ``valid`` exist; ``column`` must be a multiple of V. With ``skew``, rows may begin anywhere, and columns are
those at whole vectors in memory: ``column`` plus the row's skew is a multiple of V. A kernel that calls ``load`` for
several groups before it finishes the first has more bytes in flight.
``copy``, if asked for, is ``load`` into shared memory by asynchronous copies (``cp_async.cuh``); ``fetch`` reads them
there. ``accumulator``, ``handed0`` and so on, ``result`` and ``reduced`` are parameters only if their types exist, in
this order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

from lowdnn.codegen.access import TensorAccess
from lowdnn.codegen.parts import FunctorParts
from lowdnn.codegen.space import IndexSpace, space_of
from lowdnn.codegen.writer import FunctorWriter
from lowdnn.enums import DataType
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Struct


@dataclass(frozen=True)
class Functor:
    """The generated functor of one DAG.

    text: ``generated.cuh``.  digest: 10 hex digits of the text, for kernel names.
    arguments: the fields of ``Functor::Args`` in order.
    vector: the greatest V at which every contiguous tensor is accessed in whole vectors of 16 bytes or V elements.
    """

    text: str
    digest: str
    arguments: Struct
    vector: int


def generate(
    dag: PointwiseDag,
    *,
    accumulator: DataType | None,
    vector_axis: int,
    handed: Collection[Tensor] = (),
    result: DataType | None = None,
    stores_result: bool = False,
    reduced: Tensor | None = None,
    space: IndexSpace | None = None,
    skew: tuple[int, ...] = (),
    name: str = "Functor",
    copies: bool = False,
) -> Functor:
    """The functor of ``dag``.

    accumulator: the type in which the kernel hands in the anchor's value; None where the DAG has no anchor.
    vector_axis: the axis (of ``space``) along which ``apply`` handles neighbouring elements.
    handed: inputs among ``dag.loads`` that the kernel reads itself and hands in, in their storage types.
    result: the type in which ``dag.result`` is handed back; by default the one that its data type is computed in.
    stores_result: hand it back as its data type is stored instead.
    reduced: a tensor of the DAG whose value is handed back in fp32 as well.
    space: the coordinates that the kernel uses; by default the DAG's own axes.
    skew: strides over ``space`` that give a row's skew, the offset of its start; empty if rows begin at vectors.
    name: the C name of the struct, for kernels with two functors.
    copies: adds ``copy`` and ``fetch``; the arrays of ``Loaded`` are then aligned to their size, at most to 16 bytes.
    """
    space = space if space is not None else space_of(dag)
    parts = FunctorParts(space.rank, copies)
    access = TensorAccess(parts, space, vector_axis, skew, {tensor.uid for tensor in dag.stores})
    writer = FunctorWriter(parts, access, space, vector_axis, skew)
    _read(writer, dag, accumulator, {tensor.uid for tensor in handed})
    for op in dag.operations:
        writer.compute(op)
    for tensor in dag.stores:
        writer.store(tensor)
    if dag.result is not None:
        if stores_result:
            writer.hand_back_stored(dag.result)
        else:
            writer.hand_back(dag.result, result if result is not None else dag.result.data_type, "Result")
    if reduced is not None:
        writer.hand_back(reduced, DataType.FLOAT, "Reduced")
    text = parts.text(name)
    return Functor(text, digest_of(text), Struct(tuple(parts.arguments)), access.vector)


def digest_of(text: str) -> str:
    """10 hex digits of a text, for kernel names."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _read(writer: FunctorWriter, dag: PointwiseDag, accumulator: DataType | None, handed: Collection[int]) -> None:
    """Writes the values that come from outside: the anchor's, tensors, scalars, random numbers. handed: uids."""
    if dag.anchor is not None:
        writer.take_accumulator(dag.anchor, accumulator if accumulator is not None else dag.anchor.data_type)
    for tensor in dag.loads:
        if tensor.uid in handed:
            writer.take_handed(tensor)
        else:
            writer.load(tensor)
    for tensor in dag.scalars:
        writer.take_scalar(tensor)
    for random in dag.randoms:
        writer.draw(random)
