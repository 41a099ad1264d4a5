"""The algorithms of convolutions by number, and the candidates that they stand for.

An algorithm is a method: direct sums, implicit matrix products, products of repacked tensors, transforms. It stands for
the best candidate whose engine has that method; a second number of a method for the one with the least workspace, a
third for the next best. The first two numbers of a direction always work, so that programs which name one without
asking run: where no candidate is left for them, they stand for the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain
from operator import itemgetter
from typing import Any

from lowdnn.capi.calls.shared import member
from lowdnn.capi.classic_enums import ConvolutionBwdDataAlgo, ConvolutionBwdFilterAlgo, ConvolutionFwdAlgo
from lowdnn.capi.graphs import Planned
from lowdnn.engines.base import Engine
from lowdnn.enums import CudnnEnum, NumericalNote
from lowdnn.heuristics.ranking import Candidate
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.status import BadParamError, NotSupportedError


class Method(Enum):
    """A way in which an engine computes a convolution."""

    IMPLICIT_PRODUCT = auto()
    PRODUCT = auto()
    DIRECT = auto()
    FFT = auto()
    WINOGRAD = auto()
    WINOGRAD_FUSED = auto()


#: Beginnings of the names of engines that run products of tensors as they lie in memory, or of repacked ones.
_PRODUCTS = ("matmul", "conv_stem", "conv_wgrad_packed", "composite")
#: Beginnings of the names of engines without matrix products.
_DIRECT = ("conv_direct", "conv_depthwise", "causal_conv1d", "pointwise")
#: The beginning of the names of engines whose one kernel transforms and multiplies.
_FUSED_WINOGRAD = "conv_winograd_fused"


def method_of(engine: Engine) -> Method:
    """The method of an engine that takes convolutions."""
    if NumericalNote.FFT in engine.numerical_notes:
        return Method.FFT
    if NumericalNote.WINOGRAD in engine.numerical_notes:
        if engine.name.startswith(_FUSED_WINOGRAD):
            return Method.WINOGRAD_FUSED
        return Method.WINOGRAD
    if engine.name.startswith(_DIRECT):
        return Method.DIRECT
    return Method.PRODUCT if engine.name.startswith(_PRODUCTS) else Method.IMPLICIT_PRODUCT


@dataclass(frozen=True)
class Direction:
    """name: in the functions' names.  ports: the two operands and the result, as the functions order them.

    methods: the algorithms of each method; several methods may share theirs. The first two of all always work.
    """

    name: str
    operation: Any
    ports: tuple[str, str, str]
    methods: Mapping[Method, tuple[CudnnEnum, ...]]

    @property
    def order(self) -> tuple[CudnnEnum, ...]:
        """All algorithms, the two that always work first."""
        return tuple(dict.fromkeys(chain.from_iterable(self.methods.values())))

    @property
    def algorithms(self) -> type[CudnnEnum]:
        return type(self.order[0])

    def places(self, candidates: Sequence[Candidate]) -> dict[CudnnEnum, int]:
        """The candidates, by place, that algorithms stand for; best first."""
        found: dict[CudnnEnum, int] = {}
        for algorithms in dict.fromkeys(self.methods.values()):
            left = [place for place, own in enumerate(candidates) if self.methods[method_of(own.engine)] == algorithms]
            for number in algorithms[: len(left)]:
                is_smallest = number in algorithms[1:2]
                place = min(left, key=lambda place: candidates[place].workspace_bytes) if is_smallest else left[0]
                found[number] = place
                left.remove(place)
        return dict(sorted(found.items(), key=itemgetter(1)))

    def check(self, algorithm: int, where: str) -> CudnnEnum:
        """The algorithm with this number; raises BadParamError where there is none."""
        number = member(self.algorithms, algorithm, where)
        if number not in self.order:
            raise BadParamError.at(where, expected="an algorithm", got=number.name)
        return number

    def is_best(self, algorithm: int, planned: Planned, where: str) -> bool:
        """Whether an algorithm's number stands for the best candidate, which is known without the others."""
        number = self.check(algorithm, where)
        return number is self.methods[method_of(planned.candidate(0, where).engine)][0]

    def place(self, algorithm: int, planned: Planned, where: str) -> int:
        """The candidate that an algorithm's number stands for; raises NotSupportedError where none has its method."""
        if self.is_best(algorithm, planned, where):
            return 0
        number, places = self.check(algorithm, where), self.places(planned.candidates)
        if number not in places and number not in self.order[:2]:
            known = ", ".join(found.name for found in places)
            raise NotSupportedError.at(where, expected=f"one of {known} for this problem", got=number.name)
        return places.get(number, 0)


F, D, W = ConvolutionFwdAlgo, ConvolutionBwdDataAlgo, ConvolutionBwdFilterAlgo

#: Methods that gradients' algorithms do not tell apart.
_SUMS = (Method.IMPLICIT_PRODUCT, Method.PRODUCT, Method.DIRECT)

FORWARD = Direction(
    "Forward",
    ConvolutionForward,
    ("x", "w", "y"),
    {
        Method.IMPLICIT_PRODUCT: (F.IMPLICIT_PRECOMP_GEMM, F.IMPLICIT_GEMM),
        Method.PRODUCT: (F.GEMM,),
        Method.DIRECT: (F.DIRECT,),
        Method.WINOGRAD: (F.WINOGRAD_NONFUSED,),
        Method.WINOGRAD_FUSED: (F.WINOGRAD,),
        Method.FFT: (F.FFT_TILING, F.FFT),
    },
)
BACKWARD_DATA = Direction(
    "BackwardData",
    ConvolutionBackwardData,
    ("w", "dy", "dx"),
    {
        **dict.fromkeys(_SUMS, (D.ALGO_1, D.ALGO_0)),
        Method.WINOGRAD: (D.ALGO_WINOGRAD_NONFUSED,),
        Method.WINOGRAD_FUSED: (D.ALGO_WINOGRAD,),
        Method.FFT: (D.ALGO_FFT_TILING, D.ALGO_FFT),
    },
)
BACKWARD_FILTER = Direction(
    "BackwardFilter",
    ConvolutionBackwardFilter,
    ("x", "dy", "dw"),
    {
        **dict.fromkeys(_SUMS, (W.ALGO_1, W.ALGO_0, W.ALGO_3)),
        Method.WINOGRAD: (W.ALGO_WINOGRAD_NONFUSED, W.ALGO_WINOGRAD),
        Method.FFT: (W.ALGO_FFT_TILING, W.ALGO_FFT),
    },
)
