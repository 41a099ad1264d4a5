"""The data of one benchmark case on the GPU, in several copies, and the comparison of two results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch

from lowdnn.cases.base import Case
from lowdnn.cases.families.attention import AttentionCase
from lowdnn.cases.families.attention_backward import AttentionBackwardCase
from lowdnn.cases.families.b2b_causal_conv1d import B2BCausalConv1dCase
from lowdnn.cases.families.causal_conv1d import CausalConv1dCase
from lowdnn.cases.families.convolution import ConvolutionCase
from lowdnn.cases.families.matmul import MatmulCase
from lowdnn.cases.families.moe import MoeCase
from lowdnn.cases.families.recurrent import RnnCase
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import inputs_of
from lowdnn.ops.tensor import Tensor
from tools.bench.related import related

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
    DataType.INT64: torch.int64,
}

#: Copies of a tensor start at multiples of this.
_ALIGNMENT_BYTES = 256

#: The results of a peer: every output in the graph's order (None for one that it leaves out), or the last one alone, or
#: nothing to compare. Axes of one element do not count.
Result = torch.Tensor | Sequence[torch.Tensor | None] | None

#: Two right results differ by roundings: at most by this many units of the value, and ``_OF_MEAN`` more.
_OF_VALUE = 3
#: Units of the root mean square of all values, or of those along the last axis where that is larger: queries that see
#: few keys have large gradients.
_OF_MEAN = 7

#: The unit of contractions, which may round operands to TF32 and sums of parts to bf16.
_CONTRACTION_UNIT = 2.0**-7
#: The unit of other arithmetic: a thousand roundings of fp32. Functions and sums of any length have fewer, since sums
#: are trees.
_SINGLE_UNIT = 2.0**-13
#: The unit of weights that are rounded to e4m3.
_FP8_WEIGHT_UNIT = 2.0**-4
#: Cases that have a say in their inputs.
_ROUTED = (MoeCase, AttentionCase, AttentionBackwardCase)
_CONTRACTIONS = (
    ConvolutionCase,
    CausalConv1dCase,
    B2BCausalConv1dCase,
    MatmulCase,
    MoeCase,
    AttentionCase,
    AttentionBackwardCase,
    RnnCase,
)
#: Cases whose weights are scaled so that sums are of the size of their terms.
_SCALED = (ConvolutionCase, RnnCase)


class CaseData:
    """Every tensor of a graph that execute is given, in ``slots`` copies each.

    Inputs are normal numbers that the narrowest of their types has (a convolution's filter and weights of a recurrent
    network scaled by 1 / sqrt(terms of a sum); integer types: -8 to 7), each copy different, but for those that follow
    from others and the case's own routing; outputs are NaN (integers: 127), so that an element that nobody writes
    shows.
    """

    def __init__(self, case: Case, graph: OperationGraph, slots: int, device: str = "cuda") -> None:
        self.slots, self._device = slots, device
        self.output = next(tensor for tensor in reversed(graph.outputs) if tensor.name != "index")
        self._case, self._graph = case, graph
        self._given = [tensor for tensor in graph.inputs if tensor.constant_value is None]
        numbers = _narrowest(self._given)
        self._copies = {t.uid: self._drawn(t, numbers) for t in self._given}
        self._copies |= {t.uid: self._poisoned(t) for t in graph.outputs}
        for slot in range(slots):
            drawn = {tensor.name: self._copies[tensor.uid][slot] for tensor in self._given}
            for name, values in related(case, graph, drawn).items():
                drawn[name].copy_(values.to(numbers) if values.is_floating_point() else values)
        for uid, values in (case.routing(0) if isinstance(case, _ROUTED) else {}).items():
            for copy in self._copies[uid]:
                copy.copy_(torch.from_numpy(values))
        anchored = {tensor.uid for tensor in inputs_of(graph.operations[0]).values()}
        self._operands = [tensor for tensor in graph.inputs if tensor.uid not in anchored]

    def __getitem__(self, name: str) -> list[torch.Tensor]:
        """The copies of the first input of this name, in logical dims."""
        return next(self._copies[tensor.uid] for tensor in self._given if tensor.name == name)

    def inputs(self, *, but: Collection[str] = ()) -> list[list[torch.Tensor]]:
        """The copies of every input in device memory, in order of first use, without those named in ``but``."""
        return [self._copies[tensor.uid] for tensor in self._given if tensor.name not in but]

    @property
    def output_names(self) -> list[str]:
        return [tensor.name for tensor in self._graph.outputs]

    def outputs(self) -> list[list[torch.Tensor]]:
        """The copies of every output, in the graph's order."""
        return [self._copies[tensor.uid] for tensor in self._graph.outputs]

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
        return self._poisoned(self.output)

    def addresses(self, uids: tuple[int, ...]) -> list[tuple[int, ...]]:
        """For each slot the addresses of these tensors."""
        return [tuple(self._copies[uid][slot].data_ptr() for uid in uids) for slot in range(self.slots)]

    def disagreement(self, theirs: Result) -> str:
        """How far the outputs on the first copy are from a peer's, where roundings do not explain it; else empty."""
        if theirs is None:
            return ""
        is_last_alone = isinstance(theirs, torch.Tensor)
        given = [(self.output, theirs)] if is_last_alone else zip(self._graph.outputs, theirs, strict=True)
        for output, result in given:
            wrong = "" if result is None else disagreement(self._copies[output.uid][0], result, self.unit)
            if wrong:
                return f"{output.name}: {wrong}"
        return ""

    def excess(self, theirs: Sequence[torch.Tensor | None], exact: Sequence[torch.Tensor | None]) -> str:
        """Where the outputs on the first copy err more than ``excess_error`` allows beside a peer's; else empty.

        theirs, exact: the peer's and the exact results in the graph's order, None for those that it leaves out.
        """
        for output, result, wanted in zip(self._graph.outputs, theirs, exact, strict=True):
            if result is None or wanted is None:
                continue
            if wrong := excess_error(self._copies[output.uid][0], result, wanted):
                return f"{output.name}: {wrong}"
        return ""

    @property
    def unit(self) -> float:
        """The relative rounding of the case's arithmetic, that of its results aside."""
        if isinstance(self._case, AttentionCase | AttentionBackwardCase) and self._case.is_fp8:
            return _FP8_WEIGHT_UNIT
        return _CONTRACTION_UNIT if isinstance(self._case, _CONTRACTIONS) else _SINGLE_UNIT

    def _drawn(self, tensor: Tensor, numbers: torch.dtype) -> list[torch.Tensor]:
        is_scaled = isinstance(self._case, _SCALED) and tensor.name == "w"
        scale = (_terms(self._case) if is_scaled else 1) ** -0.5
        memory = self._memory(tensor)
        for row in memory:
            if memory.dtype.is_floating_point:
                row.copy_(torch.randn(row.shape, device=self._device, dtype=torch.float32).mul_(scale).to(numbers))
            else:
                row.random_(-8, 8)
        return _views(memory, tensor)

    def _poisoned(self, tensor: Tensor) -> list[torch.Tensor]:
        memory = self._memory(tensor)
        _poison(memory)
        return _views(memory, tensor)

    def _memory(self, tensor: Tensor) -> torch.Tensor:
        """A row of memory for each slot."""
        step = _ALIGNMENT_BYTES // tensor.element_bytes
        count = -(-tensor.span_bytes // _ALIGNMENT_BYTES) * step
        return torch.empty((self.slots, count), device=self._device, dtype=TORCH_TYPES[tensor.data_type])


def disagreement(ours: torch.Tensor, theirs: torch.Tensor, unit: float) -> str:
    """How far ``ours`` is from ``theirs``, where that is more than roundings explain; otherwise empty.

    unit: the relative rounding of the arithmetic; that of the results' narrower type counts where it is coarser.
    """
    if _extents(ours) != _extents(theirs):
        return f"dims {tuple(ours.shape)} and {tuple(theirs.shape)}"
    theirs = theirs.reshape(ours.shape)
    if not ours.dtype.is_floating_point:
        wrong = int((ours != theirs).sum())
        return f"{wrong} of {ours.numel()} integers differ" if wrong else ""
    unit = max(unit, torch.finfo(ours.dtype).eps, torch.finfo(theirs.dtype).eps)
    got, wanted = ours.float(), theirs.float()
    squares = wanted.square()
    size = torch.maximum(squares.mean(), squares.mean(-1, keepdim=True)).sqrt_()
    allowed = wanted.abs().mul_(_OF_VALUE * unit).add_(size, alpha=_OF_MEAN * unit)
    near = (got - wanted).abs_() <= allowed  # NaN is never near
    wrong = ours.numel() - int(near.sum())
    if not wrong:
        return ""
    at = tuple(int(index[0]) for index in torch.nonzero(~near, as_tuple=True))
    return f"{wrong} of {ours.numel()} values differ, at {at}: ours {float(got[at])}, theirs {float(wanted[at])}"


def excess_error(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> str:
    """The errors of ``ours`` and ``theirs``, where the greatest or the root mean square of ours is over twice theirs.

    Otherwise empty. For chains of roundings, whose error no unit of one result bounds.
    """
    wanted = exact.double()
    mine, other = (found.double().reshape(wanted.shape) - wanted for found in (ours, theirs))
    for name, size in (("greatest error", _greatest), ("root mean square error", _mean)):
        if not size(mine) <= 2 * size(other):  # NaN is never within
            return f"{name} of ours {size(mine):.3g}, of theirs {size(other):.3g}"
    return ""


def _greatest(error: torch.Tensor) -> float:
    return float(error.abs().max())


def _mean(error: torch.Tensor) -> float:
    return float(error.square().mean().sqrt())


def _terms(case: Case) -> int:
    """The terms of a sum of inputs times weights; those of a gate also for gradients of a recurrent network."""
    return case.i + case.h if isinstance(case, RnnCase) else case.length


def _extents(values: torch.Tensor) -> list[int]:
    return [extent for extent in values.shape if extent != 1]


def _narrowest(tensors: Iterable[Tensor]) -> torch.dtype:
    """The narrowest float type of at least 16 bits: a peer that takes an operand in this type has the same numbers."""
    types = [TORCH_TYPES[tensor.data_type] for tensor in tensors]
    floats = (t for t in types if t.is_floating_point and t.itemsize > 1)
    return min(floats, key=lambda t: t.itemsize, default=torch.float32)


def _poison(memory: torch.Tensor) -> None:
    if memory.dtype.itemsize == 1 and memory.dtype.is_floating_point:
        memory.view(torch.uint8).fill_(0x7F)  # the NaN of both fp8 types
    else:
        memory.fill_(float("nan") if memory.dtype.is_floating_point else 127)


def _views(memory: torch.Tensor, tensor: Tensor) -> list[torch.Tensor]:
    return [row.as_strided(tensor.dims, tensor.strides, row.storage_offset()) for row in memory]
