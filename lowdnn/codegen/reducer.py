"""A custom reduction as CUDA C++ text: its states, its operator, reading states from tensors and storing results.

    struct Reducer {
      struct State;  // a number for each pair of x and y, in the register type of its compute type
      struct Args;   // the initial values, and scalars of the operator
      static State initial(const Args&);
      static State combine(const Args&, const State& left, const State& right);
      static State shuffle_down(const State&, int offset);  // the state of the lane ``offset`` further on
    };
    struct Streams;  // a functor (``functor``) for each x, with a state for each element as the result of ``finish``
    struct Results {
      struct Args;
      static void store(const Args&, const i64 (&kept)[RANK], const State&);
    };

As in functors, the text holds structure only: initial values and constants are fields of ``Args``. A kernel includes
``math/reduction_operators.cuh`` before it, which shuffles single numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lowdnn import dtypes
from lowdnn.codegen.access import TensorAccess
from lowdnn.codegen.functor import Functor
from lowdnn.codegen.parts import FunctorParts
from lowdnn.codegen.registers import SCALAR_TYPES, register_type
from lowdnn.codegen.space import IndexSpace
from lowdnn.codegen.writer import FunctorWriter
from lowdnn.enums import DataType
from lowdnn.ops.custom_reduction import CustomReduction
from lowdnn.plan import Scalar, Struct

_STATIC = "  static __device__ __forceinline__"
_NOWHERE = IndexSpace((), {}, ())


@dataclass(frozen=True)
class Reducer:
    """text: the struct.  arguments: the fields of ``Reducer::Args`` in order."""

    text: str
    arguments: Struct


def generate_reducer(operation: CustomReduction) -> Reducer:
    """The text of ``Reducer`` for an operation."""
    parts = FunctorParts(0, has_copies=False)
    writer = FunctorWriter(parts, TensorAccess(parts, _NOWHERE, 0, (), ()), _NOWHERE, 0, ())
    state = _State(operation.compute_types)
    for i, (kind, value) in enumerate(zip(operation.compute_types, operation.initial, strict=True)):
        held = register_type(kind)
        number = dtypes.rounded(np.asarray(value), kind).item()
        is_real = held in ("f32", "f64")
        parts.add_field(held, f"initial{i}", Scalar(SCALAR_TYPES[held], float(number) if is_real else int(number)))
    for side, tensors in (("left", operation.left), ("right", operation.right)):
        for i, tensor in enumerate(tensors):
            writer.take(tensor, f"{side}.value{i}")
    for tensor in operation.operator.operands:
        writer.take_scalar(tensor)
    for op in operation.operations:
        writer.compute(op)
    made = ", ".join(writer.value(tensor) for tensor in operation.operator.made)
    body = [*parts.before, *parts.body, f"return {{{made}}};"]
    lines = [
        "#pragma once",
        "",
        *(f'#include "include/{header}.cuh"' for header in sorted(parts.headers)),
        "",
        "struct Reducer {",
        *_struct("State", state.fields),
        *_struct("Args", parts.fields),
        *_function("State initial(const Args& args)", [f"return {{{state.each('args.initial{i}')}}};"]),
        *_function("State combine(const Args& args, const State& left, const State& right)", body),
        *_function(
            "State shuffle_down(const State& state, int offset)",
            [f"return {{{state.each('::shuffle_down(state.value{i}, offset)')}}};"],
        ),
        "};",
        "",
    ]
    return Reducer("\n".join(lines), Struct(tuple(parts.arguments)))


def streams_text(kinds: Sequence[DataType], names: Sequence[str]) -> str:
    """The text of ``Streams`` over functors of these names, whose results have the compute types ``kinds``."""
    state = _State(kinds)
    each = tuple(enumerate(names))
    loads = [f"{name}::load<V>(args.part{i}, at.part{i}, column, valid, in.part{i});" for i, name in each]
    finish = [
        line
        for i, name in each
        for line in (
            f"{name}::Result result{i}[V];",
            f"{name}::finish<V>(args.part{i}, at.part{i}, column, valid, in.part{i}, result{i});",
        )
    ]
    group = "const Args& args, const Cursor& at, i64 column, int valid"
    cursors = ", ".join(f"{name}::cursor(args.part{i}, coordinate)" for i, name in each)
    lines = [
        "struct Streams {",
        f"  enum : int {{ RANK = {names[0]}::RANK }};",
        *_struct("Args", [f"{name}::Args part{i};" for i, name in each]),
        *_struct("Cursor", [f"{name}::Cursor part{i};" for i, name in each]),
        "  template <int V>",
        *_struct("Loaded", [f"{name}::Loaded<V> part{i};" for i, name in each]),
        *_function("Cursor cursor(const Args& args, const i64 (&coordinate)[RANK])", [f"return {{{cursors}}};"]),
        "  template <int V>",
        *_function(f"void load({group}, Loaded<V>& in)", loads),
        "  template <int V>",
        *_function(
            f"void finish({group}, const Loaded<V>& in, Reducer::State (&states)[V])",
            [
                *finish,
                "#pragma unroll",
                f"for (int i = 0; i < V; ++i) states[i] = {{{state.rounded('result{i}[i]')}}};",
            ],
        ),
        "};",
        "",
    ]
    return "\n".join(lines)


def results_text(kinds: Sequence[DataType], names: Sequence[str]) -> str:
    """The text of ``Results`` over functors of these names, whose accumulators have the compute types ``kinds``."""
    body = [
        line
        for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
        for line in (
            f"const {register_type(kind)} value{i}[1] = {{state.value{i}}};",
            f"{name}::apply<1>(args.part{i}, {name}::cursor(args.part{i}, kept), kept[RANK - 1], 1, value{i});",
        )
    ]
    lines = [
        "struct Results {",
        f"  enum : int {{ RANK = {names[0]}::RANK }};",
        *_struct("Args", [f"{name}::Args part{i};" for i, name in enumerate(names)]),
        *_function("void store(const Args& args, const i64 (&kept)[RANK], const Reducer::State& state)", body),
        "};",
        "",
    ]
    return "\n".join(lines)


def state_bytes(kinds: Sequence[DataType]) -> int:
    """The size of ``Reducer::State``, aligned to its largest member."""
    return _State(kinds).size_bytes


def arguments_of(functors: Sequence[Functor]) -> Struct:
    """The values of ``Streams::Args`` and ``Results::Args``."""
    return Struct(tuple(functor.arguments for functor in functors))


@dataclass(frozen=True)
class _State:
    """The members of ``State``, one for each compute type."""

    kinds: Sequence[DataType]

    @cached_property
    def held(self) -> tuple[str, ...]:
        return tuple(map(register_type, self.kinds))

    @property
    def fields(self) -> list[str]:
        return [f"{held} value{i};" for i, held in enumerate(self.held)]

    @property
    def size_bytes(self) -> int:
        end, alignment = 0, 1
        for held in self.held:
            size = 8 if held in ("f64", "i64") else 4
            end, alignment = -(-end // size) * size + size, max(alignment, size)
        return -(-end // alignment) * alignment

    def each(self, text: str) -> str:
        """``text`` for each member, with its number in place of ``{i}``."""
        return ", ".join(text.replace("{i}", str(i)) for i in range(len(self.held)))

    def rounded(self, text: str) -> str:
        """``text`` for each number of the state, rounded to the compute types."""
        found = []
        for i, (kind, held) in enumerate(zip(self.kinds, self.held, strict=True)):
            storage, value = dtypes.info(kind).c_type, text.replace("{i}", str(i), 1)
            found.append(value if storage == held else f"rounded<{storage}, {held}>({value})")
        return ", ".join(found)


def _struct(name: str, members: Sequence[str]) -> Iterator[str]:
    yield f"  struct {name} {{"
    yield from (f"    {member}" for member in members)
    yield from ("  };", "")


def _function(head: str, body: Sequence[str]) -> Iterator[str]:
    yield f"{_STATIC} {head} {{"
    yield from (line if line.startswith("#") else f"    {line}" for line in body)
    yield from ("  }", "")
