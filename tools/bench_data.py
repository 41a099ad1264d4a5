"""The data of one benchmark case on the GPU, in several copies, and the comparison of two results."""

from __future__ import annotations

import torch

from lowdnn.enums import DataType
from lowdnn.graph.cases import Case, ConvolutionCase, MoeCase
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import inputs_of
from lowdnn.ops.resample_backward import ResampleBackward
from lowdnn.ops.tensor import Tensor

TORCH_TYPES = {
    DataType.DOUBLE: torch.float64,
    DataType.FLOAT: torch.float32,
    DataType.HALF: torch.float16,
    DataType.BFLOAT16: torch.bfloat16,
    DataType.FP8_E4M3: torch.float8_e4m3fn,
    DataType.FP8_E5M2: torch.float8_e5m2,
    DataType.FP8_E8M0: torch.uint8,  # scales, which no peer computes: their bits
    DataType.INT8: torch.int8,
    DataType.INT32: torch.int32,
}

#: Copies of a tensor start at multiples of this.
_ALIGNMENT_BYTES = 256

#: Two right results of one contraction differ by the rounding of the output and by the order of the sum: at most this
#: share of the value plus this share of the root mean square of all values.
_RELATIVE, _OF_MEAN = 0.02, 0.05


class CaseData:
    """Every tensor of a graph that execute is given, in ``slots`` copies each.

    Inputs are normal numbers (a convolution's filter scaled by 1 / sqrt(terms of a sum); integer types: -8 to 7; places
    of maxima: any in the image), each copy different; outputs are NaN (integers: 127), so that an element that nobody
    writes shows.
    Inputs are normal numbers (a convolution's filter scaled by 1 / sqrt(terms of a sum); integer types: -8 to 7), each
    copy different, and the case's own routing; outputs are NaN (integers: 127), so that an element that nobody writes
    shows.
    """

    def __init__(self, case: Case, graph: OperationGraph, slots: int) -> None:
        self.slots = slots
        self.output = next(tensor for tensor in reversed(graph.outputs) if tensor.name != "index")
        self.bytes_moved = moved_bytes(graph)
        self._ports = inputs_of(graph.operations[0])
        weights = self._ports["w"].uid if isinstance(case, ConvolutionCase) and "w" in self._ports else 0
        given = [tensor for tensor in graph.inputs if tensor.constant_value is None]
        self._given = {t.uid: _inputs(t, slots, case.length if t.uid == weights else 1) for t in given}
        self._copies = self._given | {t.uid: _outputs(t, slots) for t in graph.outputs}
        operation = graph.operations[0]
        if isinstance(operation, ResampleBackward) and operation.index is not None:
            for copy in self["index"]:
                copy.copy_(_places(operation))
        for uid, values in (case.routing(0) if isinstance(case, MoeCase) else {}).items():
            for copy in self._copies[uid]:
                copy.copy_(torch.from_numpy(values))
        anchored = {tensor.uid for tensor in self._ports.values()}
        self._operands = [tensor for tensor in graph.inputs if tensor.uid not in anchored]

    def __getitem__(self, port: str) -> list[torch.Tensor]:
        """The copies of an input of the first operation, in logical dims."""
        return self._copies[self._ports[port].uid]

    def inputs(self) -> list[list[torch.Tensor]]:
        """The copies of every input in device memory, in order of first use."""
        return list(self._given.values())

    def bias(self) -> list[torch.Tensor]:
        """The copies, flat, of the epilogue's operand with one value a channel or column."""
        (tensor,) = (tensor for tensor in self._operands if tensor.dims != self.output.dims)
        return [copy.flatten() for copy in self._copies[tensor.uid]]

    def residual(self) -> list[torch.Tensor] | None:
        """The copies of the epilogue's operand with the output's own dims; None without one."""
        found = [tensor for tensor in self._operands if tensor.dims == self.output.dims]
        return self._copies[found[0].uid] if found else None

    def results(self) -> list[torch.Tensor]:
        """The copies of the graph's last output besides the places of maxima."""
        return self._copies[self.output.uid]

    def forget_result(self) -> None:
        """Makes the first copy of the output what it was before the first launch."""
        _poison(self.results()[0])

    def fresh_outputs(self) -> list[torch.Tensor]:
        """Memory like that of the last output, for a peer to write to."""
        return _outputs(self.output, self.slots)

    def addresses(self, uids: tuple[int, ...]) -> list[tuple[int, ...]]:
        """For each slot the addresses of these tensors."""
        return [tuple(self._copies[uid][slot].data_ptr() for uid in uids) for slot in range(self.slots)]


def moved_bytes(graph: OperationGraph) -> int:
    """Each input read once, each output written once."""
    return sum(tensor.span_bytes for tensor in (*graph.inputs, *graph.outputs))


def disagreement(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    """How far ``ours`` is from ``theirs``, where that is more than two roundings explain; otherwise empty."""
    if ours.shape != theirs.shape:
        return f"dims {tuple(ours.shape)} and {tuple(theirs.shape)}"
    if not ours.dtype.is_floating_point:
        wrong = int((ours != theirs).sum())
        return f"{wrong} of {ours.numel()} integers differ" if wrong else ""
    got, wanted = ours.float(), theirs.float()
    allowed = wanted.abs().mul_(_RELATIVE).add_(_OF_MEAN * wanted.square().mean().sqrt())
    near = (got - wanted).abs_() <= allowed  # NaN is never near
    wrong = ours.numel() - int(near.sum())
    if not wrong:
        return ""
    at = tuple(int(index[0]) for index in torch.nonzero(~near, as_tuple=True))
    return f"{wrong} of {ours.numel()} values differ, at {at}: ours {float(got[at])}, theirs {float(wanted[at])}"


def _inputs(tensor: Tensor, slots: int, terms: int) -> list[torch.Tensor]:
    memory = _memory(tensor, slots)
    for row in memory:
        if memory.dtype.is_floating_point:
            row.copy_(torch.randn(row.shape, device="cuda", dtype=torch.float32).mul_(terms**-0.5))
        else:
            row.random_(-8, 8)
    return _views(memory, tensor)


def _places(operation: ResampleBackward) -> torch.Tensor:
    """A random place for each window's maximum, inside the image."""
    place = torch.zeros((), device="cuda", dtype=torch.int64)
    for number, axis in enumerate(operation.axes):
        starts = torch.arange(axis.outputs, device="cuda") * axis.step - axis.offset
        first = starts.div(axis.unit, rounding_mode="floor")
        end = (starts + axis.reach).div(axis.unit, rounding_mode="floor")
        least, most = (-first).clamp_min(0), torch.minimum(end, torch.tensor(axis.inputs, device="cuda")) - first
        shape = [1] * operation.dy.rank
        shape[2 + number] = axis.outputs
        share = torch.rand(operation.dy.dims, device="cuda")
        tap = least.view(shape) + (share * (most - least).view(shape)).long()
        place = place * axis.span + tap
    return place


def _outputs(tensor: Tensor, slots: int) -> list[torch.Tensor]:
    memory = _memory(tensor, slots)
    _poison(memory)
    return _views(memory, tensor)


def _poison(memory: torch.Tensor) -> None:
    if memory.dtype.itemsize == 1 and memory.dtype.is_floating_point:
        memory.view(torch.uint8).fill_(0x7F)  # the NaN of both fp8 types
    else:
        memory.fill_(float("nan") if memory.dtype.is_floating_point else 127)


def _memory(tensor: Tensor, slots: int) -> torch.Tensor:
    """A row of memory for each slot."""
    step = _ALIGNMENT_BYTES // tensor.element_bytes
    count = -(-tensor.span_bytes // _ALIGNMENT_BYTES) * step
    return torch.empty((slots, count), device="cuda", dtype=TORCH_TYPES[tensor.data_type])


def _views(memory: torch.Tensor, tensor: Tensor) -> list[torch.Tensor]:
    return [row.as_strided(tensor.dims, tensor.strides, row.storage_offset()) for row in memory]
