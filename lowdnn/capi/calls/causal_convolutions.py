"""cudnnCausalConv1d*, cudnnB2BCausalConv1d*: causal convolutions along sequences, in a stream in place of a handle.

x, y and their gradients are packed (batch, dim, seqLen), weight (dim, kernelSize); in the functions with Nwh in their
names (batch, seqLen, dim) and (kernelSize, dim). In those with B2B x is (batch, dim, 3, seqLen) and weightsProj
(dim, 3, kernelSizeProj). The gradients of weights and biases are added to what is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from lowdnn import dtypes
from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.calls.shared import member
from lowdnn.capi.descriptors import TensorDescriptor
from lowdnn.capi.errors import Call
from lowdnn.capi.memory import Address, checked
from lowdnn.capi.state import State
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.ops.b2b_causal_conv1d import ROWS
from lowdnn.ops.b2b_causal_conv1d_backward import B2BCausalConv1dBackward
from lowdnn.ops.b2b_causal_conv1d_forward import B2BCausalConv1dForward
from lowdnn.ops.causal_conv1d_backward import CausalConv1dBackward
from lowdnn.ops.causal_conv1d_forward import CausalConv1dForward
from lowdnn.ops.tensor import MAX_SPAN_BYTES, Tensor, packed_strides
from lowdnn.status import BadParamError, NotSupportedError
from lowdnn.subquadratic_enums import CausalConv1dActivation

#: The types of x, weight and bias, with that of the gradients' sums.
_SUM_TYPES = {
    DataType.FLOAT: DataType.FLOAT,
    DataType.HALF: DataType.FLOAT,
    DataType.BFLOAT16: DataType.FLOAT,
    DataType.DOUBLE: DataType.DOUBLE,
}


@dataclass(frozen=True)
class SequenceShape:
    """The tensors of a call.

    is_nwh: whether channels lie side by side.  taps_argument: the argument that ``taps`` are.
    """

    name: str
    dims: tuple[int, int, int]
    taps: int
    data_type: DataType
    is_nwh: bool = False
    taps_argument: str = "kernelSize"

    def __post_init__(self) -> None:
        sizes = zip(("batch", "dim", "seqLen", self.taps_argument), (*self.dims, self.taps), strict=True)
        for argument, size in sizes:
            if size < 1:
                raise BadParamError.at(f"{self.name}.{argument}", expected="1 or more", got=size)
        if self.data_type not in _SUM_TYPES:
            expected, got = ", ".join(found.name for found in _SUM_TYPES), self.data_type.name
            raise NotSupportedError.at(f"{self.name}.dataType", expected=f"one of {expected}", got=got)
        for argument, elements in (("seqLen", prod(self.dims)), (self.taps_argument, self.dims[1] * self.taps)):
            size_bytes = elements * dtypes.info(self.data_type).size_bytes
            if size_bytes > MAX_SPAN_BYTES:
                expected = f"at most {MAX_SPAN_BYTES} bytes of a tensor"
                raise BadParamError.at(f"{self.name}.{argument}", expected=expected, got=f"{size_bytes} bytes")

    @property
    def rows(self) -> TensorDescriptor:
        order = (0, 2, 1) if self.is_nwh else (0, 1, 2)
        return TensorDescriptor(self.data_type, self.dims, packed_strides(self.dims, order))

    def weight(self, data_type: DataType) -> TensorDescriptor:
        dims = (self.dims[1], self.taps)
        return TensorDescriptor(data_type, dims, packed_strides(dims, (1, 0) if self.is_nwh else (0, 1)))

    def bias(self, data_type: DataType) -> TensorDescriptor:
        return TensorDescriptor(data_type, self.dims[1:2], (1,))


def forward(name: str, *, is_nwh: bool) -> Call:
    def call(
        state: State, stream: Address, x: Address, weight: Address, bias: Address, y: Address, batch: int, dim: int,
        length: int, taps: int, data_type: int, activation: int,
    ) -> None:  # fmt: skip
        check_given(name, x=x, weight=weight, bias=bias, y=y)
        shape = shape_of(name, (batch, dim, length), taps, data_type, is_nwh=is_nwh)
        kind = member(CausalConv1dActivation, activation, f"{name}.activation")
        with state.on_stream(stream) as handle:
            frame = Frame.on(state, handle, name)
            given = _parameters(frame, shape, x, weight, bias)
            result = frame.builder.result(shape.rows, y, f"{name}.y")
            frame.builder.operations.append(CausalConv1dForward(y=result, activation=kind, **given))
            frame.run()

    return call


def backward(name: str, *, is_nwh: bool) -> Call:
    def call(
        state: State, stream: Address, x: Address, weight: Address, bias: Address, dy: Address, dx: Address,
        dweight: Address, dbias: Address, batch: int, dim: int, length: int, taps: int, data_type: int, sum_type: int,
        activation: int,
    ) -> None:  # fmt: skip
        check_given(name, x=x, weight=weight, bias=bias, dy=dy, dx=dx, dweight=dweight, dbias=dbias)
        shape = shape_of(name, (batch, dim, length), taps, data_type, is_nwh=is_nwh)
        kind = member(CausalConv1dActivation, activation, f"{name}.activation")
        sums = _sum_type(name, shape.data_type, sum_type)
        with state.on_stream(stream) as handle:
            frame = Frame.on(state, handle, name)
            builder, results = frame.builder, _Results(frame, shape, sums)
            builder.operations.append(
                CausalConv1dBackward(
                    **_parameters(frame, shape, x, weight, bias),
                    dy=builder.tensor(shape.rows, dy, f"{name}.dy"),
                    dx=builder.result(shape.rows, dx, f"{name}.dx"),
                    dweight=results.dweight,
                    dbias=results.dbias,
                    activation=kind,
                )
            )
            results.add(dweight, dbias)
            frame.run()

    return call


def b2b_forward(
    state: State, stream: Address, x: Address, projection: Address, mixer: Address, skip: Address, y: Address,
    y_gated: Address, batch: int, dim: int, length: int, projection_taps: int, mixer_taps: int, data_type: int,
) -> None:  # fmt: skip
    name = "cudnnB2BCausalConv1dForward"
    check_given(name, x=x, weightsProj=projection, weightsMixer=mixer, skipBias=skip, y=y, yGated=y_gated)
    shape = _B2BShape.of(name, (batch, dim, length), (projection_taps, mixer_taps), data_type)
    with state.on_stream(stream) as handle:
        frame = Frame.on(state, handle, name)
        rows, made = shape.rows, frame.builder.result
        given = shape.inputs(frame, x, projection, mixer, skip)
        results = {"y": made(rows, y, f"{name}.y"), "y_gated": made(rows, y_gated, f"{name}.yGated")}
        frame.builder.operations.append(B2BCausalConv1dForward(**given, **results))
        frame.run()


def b2b_backward(
    state: State, stream: Address, x: Address, projection: Address, mixer: Address, skip: Address, y: Address,
    dy: Address, dx: Address, dprojection: Address, dmixer: Address, dskip: Address, batch: int, dim: int, length: int,
    projection_taps: int, mixer_taps: int, data_type: int, sum_type: int,
) -> None:  # fmt: skip
    name = "cudnnB2BCausalConv1dBackward"
    sums = {"dweightsProj": dprojection, "dweightsMixer": dmixer, "dskipBias": dskip}
    check_given(name, x=x, weightsProj=projection, weightsMixer=mixer, skipBias=skip, y=y, dy=dy, dx=dx, **sums)
    shape = _B2BShape.of(name, (batch, dim, length), (projection_taps, mixer_taps), data_type)
    kind = _sum_type(name, shape.mixer.data_type, sum_type)
    with state.on_stream(stream) as handle:
        frame = Frame.on(state, handle, name)
        builder = frame.builder
        given = shape.inputs(frame, x, projection, mixer, skip)
        kept = {"y": builder.tensor(shape.rows, y, f"{name}.y"), "dy": builder.tensor(shape.rows, dy, f"{name}.dy")}
        of = (shape.projection.weight(kind), shape.mixer.weight(kind), shape.mixer.bias(kind))
        found = [builder.virtual(descriptor.dims, kind) for descriptor in of]
        wide = builder.result(shape.projection.rows, dx, f"{name}.dx")
        ports = dict(zip(("dweights_proj", "dweights_mixer", "dskip_bias"), found, strict=True))
        builder.operations.append(B2BCausalConv1dBackward(**given, **kept, dx=wide, **ports))
        for (argument, address), tensor, descriptor in zip(sums.items(), found, of, strict=True):
            _accumulate(frame, argument, tensor, descriptor, address)
        frame.run()


@dataclass(frozen=True)
class _B2BShape:
    """The tensors of a back-to-back call: those of its two convolutions."""

    projection: SequenceShape
    mixer: SequenceShape

    @classmethod
    def of(cls, name: str, dims: tuple[int, int, int], taps: tuple[int, int], data_type: int) -> _B2BShape:
        batch, dim, length = dims
        kind = member(DataType, data_type, f"{name}.dataType")
        mixer = SequenceShape(name, dims, taps[1], kind, taps_argument="kernelSizeMixer")
        wide = SequenceShape(name, (batch, ROWS * dim, length), taps[0], kind, taps_argument="kernelSizeProj")
        return cls(wide, mixer)

    @property
    def rows(self) -> TensorDescriptor:
        return self.mixer.rows

    def inputs(self, frame: Frame, x: Address, projection: Address, mixer: Address, skip: Address) -> dict[str, Tensor]:
        kind, made = self.mixer.data_type, frame.builder.tensor
        return {
            "x": made(self.projection.rows, x, f"{frame.name}.x"),
            "weights_proj": made(self.projection.weight(kind), projection, f"{frame.name}.weightsProj"),
            "weights_mixer": made(self.mixer.weight(kind), mixer, f"{frame.name}.weightsMixer"),
            "skip_bias": made(self.mixer.bias(kind), skip, f"{frame.name}.skipBias"),
        }


class _Results:
    """The gradients of weight and bias, which are added to what is in memory."""

    def __init__(self, frame: Frame, shape: SequenceShape, sums: DataType) -> None:
        self._frame, self._weight, self._bias = frame, shape.weight(sums), shape.bias(sums)
        self.dweight = frame.builder.virtual(self._weight.dims, sums)
        self.dbias = frame.builder.virtual(self._bias.dims, sums)

    def add(self, dweight: Address, dbias: Address) -> None:
        _accumulate(self._frame, "dweight", self.dweight, self._weight, dweight)
        _accumulate(self._frame, "dbias", self.dbias, self._bias, dbias)


def _accumulate(frame: Frame, argument: str, found: Tensor, of: TensorDescriptor, address: Address) -> None:
    """Adds ``found`` to what is in memory."""
    builder, where = frame.builder, f"{frame.name}.{argument}"
    old = builder.tensor(of, address, where)
    builder.pointwise(PointwiseMode.ADD, builder.result(of, address, where), found, old)


def _sum_type(name: str, data_type: DataType, given: int) -> DataType:
    """The type of the gradients that are sums. Raises NotSupportedError unless it is that of ``_SUM_TYPES``."""
    sums, wanted = member(DataType, given, f"{name}.dwDataType"), _SUM_TYPES[data_type]
    if sums is not wanted:
        expected = f"{wanted.name} for {data_type.name}"
        raise NotSupportedError.at(f"{name}.dwDataType", expected=expected, got=sums.name)
    return sums


def check_given(name: str, **addresses: Address) -> None:
    """Raises NullPointerError for an address that is NULL."""
    for argument, address in addresses.items():
        checked(address, f"{name}.{argument}")


def shape_of(
    name: str, dims: tuple[int, int, int], taps: int, data_type: int, *, is_nwh: bool = False
) -> SequenceShape:
    return SequenceShape(name, dims, taps, member(DataType, data_type, f"{name}.dataType"), is_nwh)


def _parameters(frame: Frame, shape: SequenceShape, x: Address, weight: Address, bias: Address) -> dict[str, Tensor]:
    """The operands that both directions read."""
    data_type = shape.data_type
    given = {"x": (shape.rows, x), "weight": (shape.weight(data_type), weight), "bias": (shape.bias(data_type), bias)}
    return {
        argument: frame.builder.tensor(of, address, f"{frame.name}.{argument}")
        for argument, (of, address) in given.items()
    }


CALLS: Mapping[str, Call] = {
    "cudnnB2BCausalConv1dForward": b2b_forward,
    "cudnnB2BCausalConv1dBackward": b2b_backward,
    **{
        f"cudnnCausalConv1d{layout}{direction}": make(f"cudnnCausalConv1d{layout}{direction}", is_nwh=layout == "Nwh")
        for layout in ("", "Nwh")
        for direction, make in (("Forward", forward), ("Backward", backward))
    },
}
