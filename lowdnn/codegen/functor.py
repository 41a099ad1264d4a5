"""A pointwise DAG as the CUDA C++ text of one functor: the header ``generated.cuh`` that a kernel includes.

The text holds structure only (operations, types, which axes a tensor repeats along, stride classes along the vector
axis); strides, scalars, clips and constants are run-time fields of ``Functor::Args``, so that a new shape or constant
is not a new kernel. Every tensor's value is rounded to its data type, stored or not. No name given by a user reaches
the text.

    struct Functor {
      enum : int { RANK };
      typedef ... Accumulator;  // where the DAG has an anchor: the type of the value handed in, before its rounding
      typedef ... Result;       // where the DAG has a result: the type in which it is handed back
      typedef f32 Exit;         // where the kernel reduces a value of the DAG
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
the first ``valid`` exist; ``column`` must be a multiple of V. Of rows that begin anywhere (``skew``), columns are those
that lie at whole vectors in memory: ``column`` plus the row's skew is a multiple of V. A kernel that calls ``load`` for
several groups before it finishes the first has more bytes in flight.
``copy``, where it was asked for, is ``load`` into shared memory by copies (``cp_async.cuh``); ``fetch`` reads them
there. ``accumulator``, ``handed0`` and so on, ``result`` and ``exit`` are parameters only where the types exist, in
this order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import count
from math import copysign, inf, isnan

import numpy as np

from lowdnn import dtypes
from lowdnn.codegen.expressions import expression
from lowdnn.codegen.space import IndexSpace, space_of
from lowdnn.enums import DataType, PointwiseMode, RngDistribution
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.philox import BLOCK_WORDS
from lowdnn.ops.pointwise import PointwiseOperation, is_predicate
from lowdnn.ops.rng import RngOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, Scalar, ScalarType, Struct, TensorPointer, TensorValue

#: The greatest number of elements that one call of ``apply`` handles.
MAX_VECTOR = 16

#: Halfway between the largest f32 and what would follow it: from here on f32 rounds to infinity.
_F32_OVERFLOW = 3.4028235677973366e38
_SCALAR_TYPES = {"f32": ScalarType.F32, "f64": ScalarType.F64, "i32": ScalarType.I32, "i64": ScalarType.I64}


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
    exit: Tensor | None = None,
    space: IndexSpace | None = None,
    skew: tuple[int, ...] = (),
    name: str = "Functor",
    copies: bool = False,
) -> Functor:
    """The functor of ``dag``.

    accumulator: the type in which the kernel hands in the anchor's value; None where the DAG has no anchor.
    vector_axis: the axis (of ``space``) along which ``apply`` handles neighbouring elements.
    handed: those of ``dag.loads`` that the kernel reads itself and hands in, in their storage types.
    result: the type in which ``dag.result`` is handed back; by default the one that its data type is computed in.
    stores_result: hand it back as its data type is stored instead.
    exit: a tensor of the DAG whose value is handed back in fp32 beside the result.
    space: the coordinates that the kernel uses; by default the DAG's own axes.
    skew: strides over ``space``, of which a row's skew is the offset of its start; empty where rows begin at vectors.
    name: the C name of the struct, for kernels with two functors.
    copies: with ``copy`` and ``fetch``; the arrays of ``Loaded`` are then aligned to their size, at most to 16 bytes.
    """
    writer = _Writer(dag, space if space is not None else space_of(dag), vector_axis, skew, copies)
    if dag.anchor is not None:
        writer.take_accumulator(dag.anchor, accumulator if accumulator is not None else dag.anchor.data_type)
    for tensor in dag.loads:
        if any(tensor.uid == other.uid for other in handed):
            writer.take_handed(tensor)
        else:
            writer.load(tensor)
    for tensor in dag.scalars:
        writer.take_scalar(tensor)
    for random in dag.randoms:
        writer.draw(random)
    for op in dag.operations:
        writer.compute(op)
    for tensor in dag.stores:
        writer.store(tensor)
    if dag.result is not None:
        if stores_result:
            writer.hand_back_stored(dag.result)
        else:
            writer.hand_back(dag.result, result if result is not None else dag.result.data_type, "Result")
    if exit is not None:
        writer.hand_back(exit, DataType.FLOAT, "Exit")
    text = writer.text(name)
    return Functor(text, hashlib.sha256(text.encode()).hexdigest()[:10], Struct(tuple(writer.arguments)), writer.vector)


@cache
def register_type(data_type: DataType) -> str:
    """The C type in which values of ``data_type`` are held: f32, f64, i32 or i64."""
    if data_type in (DataType.DOUBLE, DataType.INT64):
        return dtypes.info(data_type).c_type
    return "f32" if dtypes.info(data_type).kind is dtypes.Kind.FLOAT else "i32"


def reads_own_values(mode: PointwiseMode, compute_type: DataType) -> bool:
    """True where operands enter an operation as they are and not as numbers of the compute type."""
    return is_predicate(mode) and (mode >= PointwiseMode.LOGICAL_AND or compute_type is DataType.BOOLEAN)


@dataclass(frozen=True)
class _Value:
    """A tensor's value in registers: its name, its C type, and its name in the tensor's storage type."""

    name: str
    type: str
    stored: str


class _Writer:
    """Collects the functor's parts in the order in which they are asked for."""

    def __init__(
        self, dag: PointwiseDag, space: IndexSpace, vector_axis: int, skew: tuple[int, ...], copies: bool
    ) -> None:
        self.arguments: list[Argument] = []
        self._stored = {tensor.uid for tensor in dag.stores}
        self._space = space
        self._vector_axis = vector_axis
        self._skew = skew
        self._fields: list[str] = []
        self._types: list[str] = []
        self._headers = {"numeric", "pointwise", "vector"} | ({"cp_async"} if copies else set())
        self._has_copies = copies
        self._copies: list[str] = []
        self._fetches: list[str] = []
        self._source = ""
        self._handed: list[tuple[str, str]] = []
        self._loaded: list[str] = []
        self._loads: list[str] = []
        self._offsets: dict[str, str] = {}
        self._before: list[str] = []
        self._body: list[str] = []
        self._after: list[str] = []
        self._values: dict[int, _Value] = {}
        self._pointers: dict[int, str] = {}
        self._numbers = count()
        self._widths: list[int] = []
        self._narrowest_bytes = 16

    @property
    def vector(self) -> int:
        return min([*self._widths, 16 // self._narrowest_bytes])

    def take_accumulator(self, anchor: Tensor, accumulator: DataType) -> None:
        c_type = register_type(accumulator)
        self._types.append(f"typedef {c_type} Accumulator;")
        self._handed.append(("const Accumulator (&accumulator)[V]", "accumulator"))
        self._body.append("// the accumulator, rounded to its tensor's type")
        self._define(anchor, "accumulator[i]", c_type)

    def take_handed(self, tensor: Tensor) -> None:
        number = sum(name.startswith("handed") for _, name in self._handed)
        storage, held = dtypes.info(tensor.data_type).c_type, register_type(tensor.data_type)
        self._types.append(f"typedef {storage} Handed{number};")
        self._handed.append((f"const Handed{number} (&handed{number})[V]", f"handed{number}"))
        value = _Value(f"value{next(self._numbers)}", held, f"handed{number}[i]")
        self._body.append(f"const {held} {value.name} = {_converted(value.stored, storage, held)};")
        self._values[tensor.uid] = value

    def load(self, tensor: Tensor) -> None:
        name, stride = self._pointer(tensor), self._stride(tensor)
        storage, held = dtypes.info(tensor.data_type).c_type, register_type(tensor.data_type)
        address, loaded = self._address(tensor), f"in.{name}[i]"
        aligned = f"alignas(sizeof({storage}) * V < 16 ? sizeof({storage}) * V : 16) " if self._has_copies else ""
        self._loaded.append(f"{storage} {name};" if stride == 0 else f"{aligned}{storage} {name}[V];")
        if stride == 0:
            loaded = f"in.{name}"
            self._loads.append(f"{loaded} = {address}[0];")
        elif stride == 1:
            path, width = self._path(tensor), self._width(tensor)
            if self._skew and width * tensor.element_bytes < 16 <= tensor.alignment_bytes:
                self._field("i64", f"{name}_extent", Scalar(ScalarType.I64, self._space.extents[self._vector_axis]))
                read = f"load_anywhere<{path}>(in.{name}, {address} + column, args.{name}_extent - column);"
            else:
                read = f"load_row<{path}, {width}>(in.{name}, {address} + column, valid);"
            self._loads.append(read)
        else:
            step = f"args.{name}_stride{self._vector_axis}"
            self._loads.append(f"load_strided(in.{name}, {address} + column * {step}, {step}, valid);")
        self._source = f"{address} + column"
        copied = f"copy_row<{self._width(tensor)}>(in.{name}, {address} + column, valid);"
        copy = copied if stride == 1 else self._loads[-1]
        self._copies.append(copy.replace("in.", "copied."))
        fetch = f"in.{name} = copied.{name};" if stride == 0 else f"::load<Plain, V>(in.{name}, copied.{name});"
        self._fetches.append(fetch)
        value = _Value(f"value{next(self._numbers)}", held, loaded)
        self._body.append(f"const {held} {value.name} = {_converted(loaded, storage, held)};")
        self._values[tensor.uid] = value

    def take_scalar(self, tensor: Tensor) -> None:
        """A by-value or constant tensor: a field that holds a number of the tensor's type."""
        number, held = next(self._numbers), register_type(tensor.data_type)
        argument: Argument = TensorValue(tensor.uid, _SCALAR_TYPES[held])
        if tensor.constant_value is not None:
            constant = dtypes.rounded(np.asarray(tensor.constant_value), tensor.data_type).item()
            argument = Scalar(_SCALAR_TYPES[held], constant if held in ("f32", "f64") else int(constant))
        self._field(held, f"scalar{number}", argument)
        self._before.append(f"const {held} value{number} = args.scalar{number};")
        self._values[tensor.uid] = _Value(f"value{number}", held, f"value{number}")

    def draw(self, op: RngOperation) -> None:
        """Random numbers: all V before the loop, since neighbours share the work."""
        number = next(self._numbers)
        name, kind = f"random{number}", op.rng.distribution
        is_bernoulli = kind is RngDistribution.BERNOULLI
        arithmetic = register_type(op.y.data_type if is_bernoulli else op.compute_type)
        for field, value in op.rng.parameters.items():
            c_type = "i64" if is_bernoulli else arithmetic
            self._field(c_type, f"{name}_{field}", _scalar(c_type, value))
        parameters = ", ".join(f"args.{name}_{field}" for field in op.rng.parameters)
        seed, offset = self._integer(op.seed, f"{name}_seed"), self._integer(op.offset, "")
        how, first, step = self._indices(op, name)
        count, index = ("1", "0") if step == "0" else ("V", "i")
        self._headers.add("philox")
        self._before += [
            f"// {kind.name} numbers",
            f"const Philox philox{number} = {{u64({seed}), u64({offset})}};",
            f"const {kind.name.title()}<{arithmetic}> distribution{number} = {{{parameters}}};",
            f"{arithmetic} {name}[{count}];",
            f"{how}({name}, distribution{number}, philox{number}, {first}, {step});",
        ]
        self._define(op.y, f"{name}[{index}]", arithmetic, number)

    def compute(self, op: PointwiseOperation) -> None:
        number, compute_type = next(self._numbers), op.pointwise.compute_type
        arithmetic = register_type(compute_type)
        self._body.append(f"// {op.mode.name} in {compute_type.name}")
        names = {"T": arithmetic}
        if op.mode is PointwiseMode.GEN_INDEX:
            names["index"] = self._index(op)
        else:
            names |= self._operands(op, number)
        row = expression(op.pointwise)
        for parameter in row.parameters:
            names[parameter] = f"args.op{number}_{parameter}"
            self._field(arithmetic, f"op{number}_{parameter}", _scalar(arithmetic, getattr(op.pointwise, parameter)))
        is_integer = arithmetic in ("i32", "i64")
        text = (row.integer if is_integer else row.real).format_map(names)
        if is_integer and row.integer_header:
            self._headers.add(row.integer_header)
        storage = dtypes.info(compute_type).c_type
        if storage != arithmetic and op.output.data_type is not compute_type:
            text = f"rounded<{storage}, {arithmetic}>({text})"
        self._define(op.output, text, arithmetic, number)

    def store(self, tensor: Tensor) -> None:
        name, stride = self._pointer(tensor), self._stride(tensor)
        self._before.append(f"{dtypes.info(tensor.data_type).c_type} {name}_out[V];")
        self._body.append(f"{name}_out[i] = {self._values[tensor.uid].stored};")
        address = self._address(tensor)
        if stride == 1:
            self._after.append(f"store_row<{self._width(tensor)}>({address} + column, {name}_out, valid);")
        elif stride == 0:
            self._after.append(f"store_strided({address}, {name}_out, 0, valid);")
        else:
            step = f"args.{name}_stride{self._vector_axis}"
            self._after.append(f"store_strided({address} + column * {step}, {name}_out, {step}, valid);")

    def hand_back(self, tensor: Tensor, data_type: DataType, type_name: str) -> None:
        value, c_type, name = self._values[tensor.uid], register_type(data_type), type_name.lower()
        self._types.append(f"typedef {c_type} {type_name};")
        self._handed.append((f"{type_name} (&{name})[V]", name))
        self._body.append(f"{name}[i] = {_converted(value.name, value.type, c_type)};")

    def hand_back_stored(self, tensor: Tensor) -> None:
        self._types.append(f"typedef {dtypes.info(tensor.data_type).c_type} Result;")
        self._handed.append(("Result (&result)[V]", "result"))
        self._body.append(f"result[i] = {self._values[tensor.uid].stored};")

    def text(self, name: str) -> str:
        """The header, from the collected parts."""
        if not self._fields:
            self._field("i32", "unused", Scalar(ScalarType.I32, 0))
        parameters = "".join(f",\n      {declared}" for declared, _ in self._handed)
        passed = "".join(f", {name}" for _, name in self._handed)
        group = "const Args& args, const Cursor& at, i64 column, int valid"
        lines = [
            "#pragma once",
            "",
            *(f'#include "include/{header}.cuh"' for header in sorted(self._headers)),
            "",
            f"struct {name} {{",
            f"  enum : int {{ RANK = {self._space.rank} }};",
            *(f"  {line}" for line in self._types),
            "",
            "  struct Args {",
            *(f"    {line}" for line in self._fields),
            "  };",
            "",
            "  struct Cursor {",
            *(f"    i64 {name};" for name in self._offsets),
            "  };",
            "",
            "  template <int V> struct Loaded {",
            *(f"    {line}" for line in self._loaded),
            "  };",
            "",
            "  static __device__ __forceinline__ Cursor cursor(const Args& args, const i64 (&coordinate)[RANK]) {",
            "    Cursor at;",
            *(f"    at.{name} = {value};" for name, value in self._offsets.items()),
            "    return at;",
            "  }",
            "",
            "  template <int V>",
            "  static __device__ __forceinline__ void load(",
            f"      {group}, Loaded<V>& in) {{",
            *(f"    {line}" for line in self._loads),
            "  }",
            "",
            *(self._copy_methods(group) if self._has_copies else ()),
            "  template <int V>",
            "  static __device__ __forceinline__ void finish(",
            f"      {group}, const Loaded<V>& in{parameters}) {{",
            *(f"    {line}" for line in self._before),
            "#pragma unroll",
            "    for (int i = 0; i < V; ++i) {",
            *(f"      {line}" for line in self._body),
            "    }",
            *(f"    {line}" for line in self._after),
            "  }",
            "",
            "  template <int V>",
            "  static __device__ __forceinline__ void apply(",
            f"      {group}{parameters}) {{",
            "    Loaded<V> in;",
            "    load<V>(args, at, column, valid, in);",
            f"    finish<V>(args, at, column, valid, in{passed});",
            "  }",
            "};",
            "",
        ]
        return "\n".join(lines)

    def _copy_methods(self, group: str) -> tuple[str, ...]:
        return (
            "  template <int V>",
            "  static __device__ __forceinline__ void copy(",
            f"      {group}, Loaded<V>& copied) {{",
            *(f"    {line}" for line in self._copies),
            "  }",
            "",
            "  template <int V>",
            "  static __device__ __forceinline__ void fetch(const Loaded<V>& copied, Loaded<V>& in) {",
            *(f"    {line}" for line in self._fetches),
            "  }",
            "",
            *(self._address_method() if len(self._fetches) == 1 else ()),
        )

    def _address_method(self) -> tuple[str, ...]:
        return (
            "  static __device__ __forceinline__ const void* address(const Args& args, const Cursor& at, i64 column) {",
            f"    return {self._source};",
            "  }",
            "",
        )

    def _field(self, c_type: str, name: str, argument: Argument) -> None:
        self._fields.append(f"{c_type} {name};")
        self.arguments.append(argument)

    def _pointer(self, tensor: Tensor) -> str:
        """The name of the tensor's pointer; the first call declares its fields and its offset in the cursor."""
        if tensor.uid in self._pointers:
            return self._pointers[tensor.uid]
        name = f"tensor{len(self._pointers)}"
        self._pointers[tensor.uid] = name
        facts = dtypes.info(tensor.data_type)
        constness = "" if tensor.uid in self._stored else "const "
        self._field(f"{constness}{facts.c_type}*", name, TensorPointer(tensor.uid))
        strides = self._space.strides[tensor.uid]
        terms = []
        for axis, stride in enumerate(strides):
            if axis != self._vector_axis and stride:
                terms.append(f"coordinate[{axis}] * args.{name}_stride{axis}")
            if stride > (1 if axis == self._vector_axis else 0):
                self._field("i64", f"{name}_stride{axis}", Scalar(ScalarType.I64, stride))
        self._offsets[name] = "\n      + ".join(terms) or "0"
        if strides[self._vector_axis] == 1:
            self._widths.append(contiguous_elements(tensor, strides, self._vector_axis, self._skew))
            self._narrowest_bytes = min(self._narrowest_bytes, facts.size_bytes)
        return name

    def _address(self, tensor: Tensor) -> str:
        name = self._pointers[tensor.uid]
        return f"(args.{name} + at.{name})"

    def _stride(self, tensor: Tensor) -> int:
        return self._space.strides[tensor.uid][self._vector_axis]

    def _path(self, tensor: Tensor) -> str:
        """How a contiguous tensor is read (``vector.cuh``)."""
        if tensor.uid in self._stored:
            return "Plain"
        axes = zip(self._space.strides[tensor.uid], self._space.extents, strict=True)
        if any(not stride and extent > 1 for stride, extent in axes):
            return "Repeated"
        # Of what is read once, in whole vectors of 16 bytes, nothing that L1 kept would be used again.
        return "Stream" if self._width(tensor) * tensor.element_bytes == 16 else "Plain"

    def _width(self, tensor: Tensor) -> int:
        elements = contiguous_elements(tensor, self._space.strides[tensor.uid], self._vector_axis, self._skew)
        return min(elements, 16 // tensor.element_bytes)

    def _index(self, op: PointwiseOperation) -> str:
        """The element's index along the axis of a GEN_INDEX."""
        axis = op.pointwise.axis
        if op.output.dims[axis] == 1:
            return "i64(0)"
        here = self._space.origin.index((axis,))
        if here == self._vector_axis:
            return "(column + i)"
        self._offsets[f"index{here}"] = f"coordinate[{here}]"
        return f"at.index{here}"

    def _integer(self, given: Tensor | int | None, field: str) -> str:
        """A seed or an offset: the value of a tensor, a field for a number, 0 for none."""
        if isinstance(given, Tensor):
            return self._values[given.uid].stored
        if given is None:
            return "0"
        self._field("i64", field, Scalar(ScalarType.I64, given))
        return f"args.{field}"

    def _indices(self, op: RngOperation, name: str) -> tuple[str, str, str]:
        """The function that draws V numbers, the index of the first of them, and the step to the next."""
        strides = self._space.indices[op.y.uid]
        step = strides[self._vector_axis]
        others = {axis: stride for axis, stride in enumerate(strides) if stride and axis != self._vector_axis}
        for axis, stride in others.items():
            self._field("i64", f"{name}_stride{axis}", Scalar(ScalarType.I64, stride))
        terms = [f"coordinate[{axis}] * args.{name}_stride{axis}" for axis in others]
        self._offsets[name] = "\n      + ".join(terms) or "0"
        if step == 0:
            return "draw_strided", f"at.{name}", "0"
        if step == 1:
            is_whole = not self._skew and all(stride % BLOCK_WORDS == 0 for stride in others.values())
            return "draw_whole" if is_whole else "draw_row", f"at.{name} + column", "1"
        self._field("i64", f"{name}_step", Scalar(ScalarType.I64, step))
        return "draw_strided", f"at.{name} + column * args.{name}_step", f"args.{name}_step"

    def _operands(self, op: PointwiseOperation, number: int) -> dict[str, str]:
        """The names under which the operands enter the expression of ``op``."""
        values = {port: self._values[tensor.uid] for port, tensor in op.operands.items()}
        if reads_own_values(op.mode, op.pointwise.compute_type):
            common = _common_type(value.type for value in values.values())
            return {port: _converted(value.name, value.type, common) for port, value in values.items()}
        return {
            port: f"({value.name} != 0)" if port == "t" else self._operand(op, port, value, number)
            for port, value in values.items()
        }

    def _operand(self, op: PointwiseOperation, port: str, value: _Value, number: int) -> str:
        """An operand as a number of the compute type, times its alpha."""
        compute_type = op.pointwise.compute_type
        arithmetic = register_type(compute_type)
        text = _as_number(value, op.operands[port].data_type, compute_type)
        alpha = {"x": op.alpha1, "b": op.alpha2}.get(port, 1.0)
        if alpha != 1.0:
            self._field(arithmetic, f"op{number}_alpha_{port}", _scalar(arithmetic, alpha))
            text = f"args.op{number}_alpha_{port} * {text}"
        if text == value.name:
            return text
        self._body.append(f"const {arithmetic} op{number}_{port} = {text};")
        return f"op{number}_{port}"

    def _define(self, tensor: Tensor, text: str, c_type: str, number: int | None = None) -> None:
        """Binds ``tensor`` to ``text``, which has type ``c_type``, rounded to the tensor's data type."""
        name = f"value{next(self._numbers) if number is None else number}"
        storage, held = dtypes.info(tensor.data_type).c_type, register_type(tensor.data_type)
        if storage == held:
            self._body.append(f"const {held} {name} = {_converted(text, c_type, held)};")
            self._values[tensor.uid] = _Value(name, held, name)
        else:
            self._body.append(f"const {storage} {name}_stored = convert<{storage}>({text});")
            self._body.append(f"const {held} {name} = convert<{held}>({name}_stored);")
            self._values[tensor.uid] = _Value(name, held, f"{name}_stored")


def _converted(text: str, source: str, target: str) -> str:
    return text if source == target else f"convert<{target}>({text})"


def _as_number(value: _Value, data_type: DataType, compute_type: DataType) -> str:
    """A value of ``data_type`` as a number of the compute type, in that type's register type."""
    storage, held = dtypes.info(compute_type).c_type, register_type(compute_type)
    if storage == held or data_type is compute_type:
        return _converted(value.name, value.type, held)
    return f"rounded<{storage}, {held}>({value.name})"


def _common_type(types: Iterable[str]) -> str:
    """The C type in which values of all ``types`` are compared."""
    distinct = set(types)
    if len(distinct) == 1:
        return distinct.pop()
    return "i64" if distinct <= {"i32", "i64"} else "f64"


def contiguous_elements(tensor: Tensor, strides: tuple[int, ...], vector_axis: int, skew: tuple[int, ...] = ()) -> int:
    """The greatest power of two, at most MAX_VECTOR, of which every row's address, less its skew, is a multiple."""
    elements = min(MAX_VECTOR, tensor.alignment_bytes // tensor.element_bytes)
    for axis, (stride, skewed) in enumerate(zip(strides, skew or (0,) * len(strides), strict=True)):
        while axis != vector_axis and (stride - skewed) % elements:
            elements //= 2
    return elements


def _scalar(c_type: str, value: float) -> Scalar:
    """A parameter as a field of type i32, i64, f32 or f64; an infinite or too large one saturates in integers."""
    if c_type in ("f32", "f64"):
        overflows = c_type == "f32" and abs(value) >= _F32_OVERFLOW
        return Scalar(_SCALAR_TYPES[c_type], copysign(inf, value) if overflows else float(value))
    limit = 2 ** (31 if c_type == "i32" else 63)
    bounded = 0 if isnan(value) else max(-limit, min(limit - 1, value))
    return Scalar(_SCALAR_TYPES[c_type], int(bounded))
