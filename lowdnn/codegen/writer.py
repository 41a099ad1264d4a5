"""Turns the operations of a DAG into the lines of a functor."""

from __future__ import annotations

from itertools import count

import numpy as np

from lowdnn import dtypes
from lowdnn.codegen.access import TensorAccess
from lowdnn.codegen.expressions import expression
from lowdnn.codegen.parts import FunctorParts
from lowdnn.codegen.registers import (
    SCALAR_TYPES,
    Value,
    as_number,
    common_type,
    converted,
    reads_own_values,
    register_type,
    scalar,
)
from lowdnn.codegen.space import IndexSpace
from lowdnn.enums import DataType, PointwiseMode, RngDistribution
from lowdnn.ops.philox import BLOCK_WORDS
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.rng import RngOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, Scalar, ScalarType, TensorValue


class FunctorWriter:
    """Adds the lines of each value to the functor's parts, in the order in which values are asked for."""

    def __init__(
        self, parts: FunctorParts, access: TensorAccess, space: IndexSpace, vector_axis: int, skew: tuple[int, ...]
    ) -> None:
        self._parts = parts
        self._access = access
        self._space = space
        self._vector_axis = vector_axis
        self._skew = skew
        self._values: dict[int, Value] = {}
        self._numbers = count()

    def take_accumulator(self, anchor: Tensor, accumulator: DataType) -> None:
        c_type = register_type(accumulator)
        self._parts.types.append(f"typedef {c_type} Accumulator;")
        self._parts.handed.append(("const Accumulator (&accumulator)[V]", "accumulator"))
        self._parts.body.append("// the accumulator, rounded to its tensor's type")
        self._define(anchor, "accumulator[i]", c_type)

    def take(self, tensor: Tensor, text: str) -> None:
        """A value that ``text`` gives, of the tensor's register type and already rounded to its data type."""
        self._define(tensor, text, register_type(tensor.data_type))

    def value(self, tensor: Tensor) -> str:
        """The name of the value of ``tensor``, in its register type."""
        return self._values[tensor.uid].name

    def take_handed(self, tensor: Tensor) -> None:
        number = sum(name.startswith("handed") for _, name in self._parts.handed)
        storage, held = dtypes.info(tensor.data_type).c_type, register_type(tensor.data_type)
        self._parts.types.append(f"typedef {storage} Handed{number};")
        self._parts.handed.append((f"const Handed{number} (&handed{number})[V]", f"handed{number}"))
        value = Value(f"value{next(self._numbers)}", held, f"handed{number}[i]")
        self._parts.body.append(f"const {held} {value.name} = {converted(value.stored, storage, held)};")
        self._values[tensor.uid] = value

    def load(self, tensor: Tensor) -> None:
        storage, held = dtypes.info(tensor.data_type).c_type, register_type(tensor.data_type)
        loaded = self._access.load(tensor)
        value = Value(f"value{next(self._numbers)}", held, loaded)
        self._parts.body.append(f"const {held} {value.name} = {converted(loaded, storage, held)};")
        self._values[tensor.uid] = value

    def take_scalar(self, tensor: Tensor) -> None:
        """A by-value or constant tensor: a field that holds a number of the tensor's type."""
        number, held = next(self._numbers), register_type(tensor.data_type)
        argument: Argument = TensorValue(tensor.uid, SCALAR_TYPES[held])
        if tensor.constant_value is not None:
            constant = dtypes.rounded(np.asarray(tensor.constant_value), tensor.data_type).item()
            argument = Scalar(SCALAR_TYPES[held], constant if held in ("f32", "f64") else int(constant))
        self._parts.add_field(held, f"scalar{number}", argument)
        self._parts.before.append(f"const {held} value{number} = args.scalar{number};")
        self._values[tensor.uid] = Value(f"value{number}", held, f"value{number}")

    def draw(self, op: RngOperation) -> None:
        """Random numbers: all V before the loop, since neighbours share the work."""
        number = next(self._numbers)
        name, kind = f"random{number}", op.rng.distribution
        is_bernoulli = kind is RngDistribution.BERNOULLI
        arithmetic = register_type(op.y.data_type if is_bernoulli else op.compute_type)
        for field, value in op.rng.parameters.items():
            c_type = "i64" if is_bernoulli else arithmetic
            self._parts.add_field(c_type, f"{name}_{field}", scalar(c_type, value))
        parameters = ", ".join(f"args.{name}_{field}" for field in op.rng.parameters)
        seed, offset = self._integer(op.seed, f"{name}_seed"), self._integer(op.offset, "")
        how, first, step = self._indices(op, name)
        count, index = ("1", "0") if step == "0" else ("V", "i")
        self._parts.headers.add("philox")
        self._parts.before += [
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
        self._parts.body.append(f"// {op.mode.name} in {compute_type.name}")
        names = {"T": arithmetic}
        if op.mode is PointwiseMode.GEN_INDEX:
            names["index"] = self._index(op)
        else:
            names |= self._operands(op, number)
        row = expression(op.pointwise)
        for parameter in row.parameters:
            names[parameter] = f"args.op{number}_{parameter}"
            self._parts.add_field(
                arithmetic, f"op{number}_{parameter}", scalar(arithmetic, getattr(op.pointwise, parameter))
            )
        is_integer = arithmetic in ("i32", "i64")
        text = (row.integer if is_integer else row.real).format_map(names)
        if is_integer and row.integer_header:
            self._parts.headers.add(row.integer_header)
        storage = dtypes.info(compute_type).c_type
        if storage != arithmetic and op.output.data_type is not compute_type:
            text = f"rounded<{storage}, {arithmetic}>({text})"
        self._define(op.output, text, arithmetic, number)

    def store(self, tensor: Tensor) -> None:
        self._access.store(tensor, self._values[tensor.uid].stored)

    def hand_back(self, tensor: Tensor, data_type: DataType, type_name: str) -> None:
        value, c_type, name = self._values[tensor.uid], register_type(data_type), type_name.lower()
        self._parts.types.append(f"typedef {c_type} {type_name};")
        self._parts.handed.append((f"{type_name} (&{name})[V]", name))
        self._parts.body.append(f"{name}[i] = {converted(value.name, value.type, c_type)};")

    def hand_back_stored(self, tensor: Tensor) -> None:
        self._parts.types.append(f"typedef {dtypes.info(tensor.data_type).c_type} Result;")
        self._parts.handed.append(("Result (&result)[V]", "result"))
        self._parts.body.append(f"result[i] = {self._values[tensor.uid].stored};")

    def _index(self, op: PointwiseOperation) -> str:
        """The element's index along the axis of a GEN_INDEX."""
        axis = op.pointwise.axis
        if op.output.dims[axis] == 1:
            return "i64(0)"
        here = self._space.origin.index((axis,))
        if here == self._vector_axis:
            return "(column + i)"
        self._parts.offsets[f"index{here}"] = f"coordinate[{here}]"
        return f"at.index{here}"

    def _integer(self, given: Tensor | int | None, field: str) -> str:
        """A seed or an offset: the value of a tensor, a field for a number, 0 for none."""
        if isinstance(given, Tensor):
            return self._values[given.uid].stored
        if given is None:
            return "0"
        self._parts.add_field("i64", field, Scalar(ScalarType.I64, given))
        return f"args.{field}"

    def _indices(self, op: RngOperation, name: str) -> tuple[str, str, str]:
        """The function that draws V numbers, the index of the first of them, and the step to the next."""
        strides = self._space.indices[op.y.uid]
        step = strides[self._vector_axis]
        others = {axis: stride for axis, stride in enumerate(strides) if stride and axis != self._vector_axis}
        for axis, stride in others.items():
            self._parts.add_field("i64", f"{name}_stride{axis}", Scalar(ScalarType.I64, stride))
        terms = [f"coordinate[{axis}] * args.{name}_stride{axis}" for axis in others]
        self._parts.offsets[name] = "\n      + ".join(terms) or "0"
        if step == 0:
            return "draw_strided", f"at.{name}", "0"
        if step == 1:
            is_whole = not self._skew and all(stride % BLOCK_WORDS == 0 for stride in others.values())
            return "draw_whole" if is_whole else "draw_row", f"at.{name} + column", "1"
        self._parts.add_field("i64", f"{name}_step", Scalar(ScalarType.I64, step))
        return "draw_strided", f"at.{name} + column * args.{name}_step", f"args.{name}_step"

    def _operands(self, op: PointwiseOperation, number: int) -> dict[str, str]:
        """The names under which the operands enter the expression of ``op``."""
        values = {port: self._values[tensor.uid] for port, tensor in op.operands.items()}
        if reads_own_values(op.mode, op.pointwise.compute_type):
            common = common_type(value.type for value in values.values())
            return {port: converted(value.name, value.type, common) for port, value in values.items()}
        return {
            port: f"({value.name} != 0)" if port == "t" else self._operand(op, port, value, number)
            for port, value in values.items()
        }

    def _operand(self, op: PointwiseOperation, port: str, value: Value, number: int) -> str:
        """An operand as a number of the compute type, times its alpha."""
        compute_type = op.pointwise.compute_type
        arithmetic = register_type(compute_type)
        text = as_number(value, op.operands[port].data_type, compute_type)
        alpha = {"x": op.alpha1, "b": op.alpha2}.get(port, 1.0)
        if alpha != 1.0:
            self._parts.add_field(arithmetic, f"op{number}_alpha_{port}", scalar(arithmetic, alpha))
            text = f"args.op{number}_alpha_{port} * {text}"
        if text == value.name:
            return text
        self._parts.body.append(f"const {arithmetic} op{number}_{port} = {text};")
        return f"op{number}_{port}"

    def _define(self, tensor: Tensor, text: str, c_type: str, number: int | None = None) -> None:
        """Binds ``tensor`` to ``text``, which has type ``c_type``, rounded to the tensor's data type."""
        name = f"value{next(self._numbers) if number is None else number}"
        storage, held = dtypes.info(tensor.data_type).c_type, register_type(tensor.data_type)
        if storage == held:
            self._parts.body.append(f"const {held} {name} = {converted(text, c_type, held)};")
            self._values[tensor.uid] = Value(name, held, name)
        else:
            self._parts.body.append(f"const {storage} {name}_stored = convert<{storage}>({text});")
            self._parts.body.append(f"const {held} {name} = convert<{held}>({name}_stored);")
            self._values[tensor.uid] = Value(name, held, f"{name}_stored")
