"""cudnnFFTCausalConv1d*, cudnnLongFFTCausalConv1d*: causal convolutions with long filters, in a stream.

    y[b, d, l] = sum over q < kernelSize of weight[d, q] * x[b, d, l - q]

x and y are packed (batch, dim, seqLen), weight (dim, kernelSize), whose first element belongs to the current position:
the other order than that of ``causal_convolutions``. Gradients replace what is there. Each is a convolution of one
filter for each channel, which ``conv_fft`` computes; of DOUBLE, which it does not take, the best engine.

The long forms get the caller's workspace, and keep x and weight in the reserve space for the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lowdnn.capi.calls.causal_convolutions import SequenceShape, check_given, shape_of
from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.descriptors import TensorDescriptor
from lowdnn.capi.errors import Call
from lowdnn.capi.graphs import MAX_ALIGNMENT, Builder, compute_type_of
from lowdnn.capi.memory import Address, checked, write_outputs
from lowdnn.capi.state import State
from lowdnn.engines.launch import ceil_div
from lowdnn.enums import ConvolutionMode, NumericalNote, PointwiseMode
from lowdnn.heuristics.ranking import Candidate
from lowdnn.ops.base import Operation
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import packed_strides
from lowdnn.runtime.workspace import size_anywhere
from lowdnn.status import SizeInsufficientError

#: An address for plans whose tensors have none yet; those that callers give have its alignment.
_SOMEWHERE = 1 << 20
#: The functions' arguments for ports of other names.
_ARGUMENTS = {"w": "weight", "dw": "dweight"}


def forward(
    state: State, stream: Address, x: Address, weight: Address, y: Address, batch: int, dim: int, length: int,
    taps: int, data_type: int,
) -> None:  # fmt: skip
    name = "cudnnFFTCausalConv1dForward"
    check_given(name, x=x, weight=weight, y=y)
    graphs = _Graphs(shape_of(name, (batch, dim, length), taps, data_type))
    with state.on_stream(stream) as handle:
        graphs.run(Frame.on(state, handle, name), [graphs.forward(x, weight, y)])


def backward(
    state: State, stream: Address, x: Address, weight: Address, dy: Address, dx: Address, dweight: Address, batch: int,
    dim: int, length: int, taps: int, data_type: int,
) -> None:  # fmt: skip
    name = "cudnnFFTCausalConv1dBackward"
    check_given(name, x=x, weight=weight, dy=dy, dx=dx, dweight=dweight)
    graphs = _Graphs(shape_of(name, (batch, dim, length), taps, data_type))
    with state.on_stream(stream) as handle:
        built = [graphs.dx(dy, weight, dx), graphs.dweight(x, dy, dweight)]
        graphs.run(Frame.on(state, handle, name), built)


def long_sizes(
    state: State, batch: int, dim: int, length: int, taps: int, data_type: int, workspace: Address, reserve: Address
) -> None:
    name = "cudnnLongFFTCausalConv1dGetBufferSizes"
    check_given(name, workspaceSizeInBytes=workspace, reserveSpaceSizeInBytes=reserve)
    graphs = _Graphs(shape_of(name, (batch, dim, length), taps, data_type))
    with state.on_stream(None) as handle:
        needed = graphs.workspace_bytes(Frame.on(state, handle, name))
    outputs = ((workspace, needed, "workspaceSizeInBytes"), (reserve, graphs.reserve_bytes, "reserveSpaceSizeInBytes"))
    write_outputs(*((address, "Q", size, f"{name}.{argument}") for address, size, argument in outputs))


def long_forward(
    state: State, stream: Address, x: Address, weight: Address, y: Address, batch: int, dim: int, length: int,
    taps: int, data_type: int, workspace: Address, workspace_bytes: int, reserve: Address, reserve_bytes: int,
) -> None:  # fmt: skip
    name = "cudnnLongFFTCausalConv1dForward"
    check_given(name, x=x, weight=weight, y=y)
    graphs = _Graphs(shape_of(name, (batch, dim, length), taps, data_type))
    kept_x, kept_weight = graphs.kept(reserve, reserve_bytes)
    with state.on_stream(stream) as handle:
        copies = [graphs.copy("x", x, kept_x), graphs.copy("w", weight, kept_weight)]
        built = [*copies, graphs.forward(x, weight, y)]
        graphs.run(Frame.on(state, handle, name), built, (workspace, workspace_bytes))


def long_backward(
    state: State, stream: Address, dy: Address, dx: Address, dweight: Address, batch: int, dim: int, length: int,
    taps: int, data_type: int, workspace: Address, workspace_bytes: int, reserve: Address, reserve_bytes: int,
) -> None:  # fmt: skip
    name = "cudnnLongFFTCausalConv1dBackward"
    check_given(name, dy=dy, dx=dx, dweight=dweight)
    graphs = _Graphs(shape_of(name, (batch, dim, length), taps, data_type))
    x, weight = graphs.kept(reserve, reserve_bytes)
    with state.on_stream(stream) as handle:
        built = [graphs.dx(dy, weight, dx), graphs.dweight(x, dy, dweight)]
        graphs.run(Frame.on(state, handle, name), built, (workspace, workspace_bytes))


@dataclass(frozen=True)
class _Graphs:
    """The graphs of a problem, for tensors at given addresses."""

    shape: SequenceShape

    @property
    def rows(self) -> TensorDescriptor:
        return self.shape.rows

    @property
    def filters(self) -> TensorDescriptor:
        dims = (self.shape.dims[1], 1, self.shape.taps)
        return TensorDescriptor(self.shape.data_type, dims, packed_strides(dims))

    def forward(self, x: Address, weight: Address, y: Address) -> Builder:
        return self._built(ConvolutionForward, {"x": x, "w": weight}, "y", y)

    def dx(self, dy: Address, weight: Address, dx: Address) -> Builder:
        return self._built(ConvolutionBackwardData, {"dy": dy, "w": weight}, "dx", dx)

    def dweight(self, x: Address, dy: Address, dweight: Address) -> Builder:
        return self._built(ConvolutionBackwardFilter, {"x": x, "dy": dy}, "dw", dweight)

    def copy(self, port: str, source: Address, to: Address) -> Builder:
        """The graph that keeps the tensor of a port in the reserve space."""
        builder, of = Builder(), self._descriptor(port)
        given = builder.tensor(of, source, self._where(port))
        builder.pointwise(PointwiseMode.IDENTITY, builder.result(of, to, self._where("reserveSpace")), given)
        return builder

    def workspace_bytes(self, frame: Frame) -> int:
        """The bytes that the convolutions need in turn, with tensors that are aligned."""
        makers: tuple[Callable[[Address, Address, Address], Builder], ...] = (self.forward, self.dx, self.dweight)
        at = (_SOMEWHERE, 2 * _SOMEWHERE, 3 * _SOMEWHERE)
        found = (_candidate(frame, make(*at)) for make in makers)
        return max(size_anywhere(candidate.plan.workspace_bytes) for candidate in found)

    def run(self, frame: Frame, built: list[Builder], workspace: tuple[Address, int] | None = None) -> None:
        """Runs the graphs in turn, with the caller's workspace if there is one. If a graph has no plan, none runs.

        Raises SizeInsufficientError where the workspace is smaller than the caller was told, before anything runs.
        """
        told = self.workspace_bytes(frame) if workspace is not None else 0
        if workspace is not None and workspace[1] < told:
            where = self._where("workspaceSizeInBytes")
            raise SizeInsufficientError.at(where, expected=f"at least {told}", got=workspace[1])
        graphs, handle, name = frame.state.graphs, frame.handle, frame.name
        for builder, place in [(builder, _place(frame, builder)) for builder in built]:
            graphs.run(handle, builder, name, workspace, place, told_bytes=lambda: told)

    @property
    def reserve_bytes(self) -> int:
        """x and weight, each from an aligned place on."""
        return self._x_bytes + self.filters.size_bytes

    def kept(self, reserve: Address, size_bytes: int) -> tuple[int, int]:
        """The addresses of x and weight in the reserve space; raises NullPointerError and SizeInsufficientError."""
        address = checked(reserve, self._where("reserveSpace"))
        if size_bytes < self.reserve_bytes:
            where = self._where("reserveSpaceSizeInBytes")
            raise SizeInsufficientError.at(where, expected=f"at least {self.reserve_bytes}", got=size_bytes)
        return address, address + self._x_bytes

    @property
    def _x_bytes(self) -> int:
        return ceil_div(self.rows.size_bytes, MAX_ALIGNMENT) * MAX_ALIGNMENT

    @property
    def _convolution(self) -> Convolution:
        compute, before = compute_type_of(self.shape.data_type), (self.shape.taps - 1,)
        return Convolution(compute, 1, before, (0,), (1,), (1,), ConvolutionMode.CONVOLUTION)

    def _built(
        self, operation: Callable[..., Operation], inputs: Mapping[str, Address], port: str, result: Address
    ) -> Builder:
        """The graph of one convolution, with addresses by its ports.  port: the result's."""
        builder = Builder()
        tensors = {
            name: builder.tensor(self._descriptor(name), address, self._where(name)) for name, address in inputs.items()
        }
        tensors[port] = builder.result(self._descriptor(port), result, self._where(port))
        builder.operations.append(operation(self._convolution, **tensors))
        return builder

    def _descriptor(self, port: str) -> TensorDescriptor:
        return self.filters if port in ("w", "dw") else self.rows

    def _where(self, argument: str) -> str:
        """The name of an argument, or of the one for a port, in messages."""
        return f"{self.shape.name}.{_ARGUMENTS.get(argument, argument)}"


def _place(frame: Frame, builder: Builder) -> int:
    """The place of the candidate that transforms, among those of a graph; otherwise that of the best one."""
    planned = frame.state.graphs.planned(frame.handle, builder)
    planned.candidate(0, frame.name)
    transforms = (NumericalNote.FFT in candidate.plan.numerical_notes for candidate in planned.candidates)
    return next((place for place, is_wanted in enumerate(transforms) if is_wanted), 0)


def _candidate(frame: Frame, builder: Builder) -> Candidate:
    return frame.state.graphs.planned(frame.handle, builder).candidate(_place(frame, builder), frame.name)


CALLS: Mapping[str, Call] = {
    "cudnnFFTCausalConv1dForward": forward,
    "cudnnFFTCausalConv1dBackward": backward,
    "cudnnLongFFTCausalConv1dGetBufferSizes": long_sizes,
    "cudnnLongFFTCausalConv1dForward": long_forward,
    "cudnnLongFFTCausalConv1dBackward": long_backward,
}
