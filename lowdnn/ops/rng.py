"""Random numbers: element i of y, counted in row-major order, is a function of seed, offset and i alone.

    word(i) = word i % 4 of Philox4x32-10 with key seed and counter i // 4 + 2^64 * offset
    u(i) = (word(i) | 1) / 2^32, cut to 24 significant bits unless y is DOUBLE; between 0 and 1, never equal to them

    BERNOULLI  1 where word(i) < probability * 2^32, otherwise 0
    UNIFORM    minimum + u(i) * (maximum - minimum)
    NORMAL     mean + deviation * sqrt(-2 log u(j)) * (cos(2 pi u(j + 1)) for i = j, sin for i = j + 1), j even

The arithmetic is that of DOUBLE where y is, otherwise of FLOAT. So the numbers do not depend on y's layout, nor, apart
from their rounding, on its data type. Each offset is a stream of its own, which no other overlaps.
Source: cudnn_graph.h, CUDNN_BACKEND_RNG_DESCRIPTOR, OPERATION_RNG, cudnnRngDistribution_t; Box and Muller, "A note on
the generation of random normal deviates", 1958.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, RngDistribution
from lowdnn.ops import philox
from lowdnn.ops.base import Values
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import BadParamError, UnsupportedDataTypeError

_WORDS = 2**32
#: Multiplications and additions that a number costs, for the cost model.
_FLOPS = 32


@dataclass(frozen=True)
class Rng:
    """A distribution and its parameters; those of the other distributions are not used."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.RNG

    distribution: RngDistribution = attribute(
        AttributeName.RNG_DISTRIBUTION, AttributeType.RNG_DISTRIBUTION, default=RngDistribution.BERNOULLI
    )
    mean: float = attribute(AttributeName.RNG_NORMAL_DIST_MEAN, AttributeType.DOUBLE, default=-1.0)
    standard_deviation: float = attribute(
        AttributeName.RNG_NORMAL_DIST_STANDARD_DEVIATION, AttributeType.DOUBLE, default=-1.0
    )
    maximum: float = attribute(AttributeName.RNG_UNIFORM_DIST_MAXIMUM, AttributeType.DOUBLE, default=1.0)
    minimum: float = attribute(AttributeName.RNG_UNIFORM_DIST_MINIMUM, AttributeType.DOUBLE, default=0.0)
    probability: float = attribute(AttributeName.RNG_BERNOULLI_DIST_PROBABILITY, AttributeType.DOUBLE, default=-1.0)

    def __post_init__(self) -> None:
        match self.distribution:
            case RngDistribution.BERNOULLI:
                if not 0 <= self.probability <= 1:
                    raise BadParamError.at("rng.probability", expected="0 to 1", got=self.probability)
            case RngDistribution.UNIFORM:
                if not (self.minimum <= self.maximum and isfinite(self.minimum) and isfinite(self.maximum)):
                    raise BadParamError.at(
                        "rng.maximum", expected=f"a finite number >= the minimum {self.minimum}", got=self.maximum
                    )
            case RngDistribution.NORMAL:
                if not (self.standard_deviation >= 0 and isfinite(self.standard_deviation) and isfinite(self.mean)):
                    raise BadParamError.at(
                        "rng.standard_deviation",
                        expected="a finite number >= 0, with a finite mean",
                        got=f"{self.standard_deviation} with mean {self.mean}",
                    )

    @property
    def threshold(self) -> int:
        """Random words below it give 1 in BERNOULLI."""
        return ceil(self.probability * _WORDS)

    @property
    def parameters(self) -> Mapping[str, float]:
        """The parameters of a kernel, in order."""
        match self.distribution:
            case RngDistribution.BERNOULLI:
                return {"threshold": self.threshold}
            case RngDistribution.UNIFORM:
                return {"lowest": self.minimum, "span": self.maximum - self.minimum}
            case RngDistribution.NORMAL:
                return {"mean": self.mean, "deviation": self.standard_deviation}


@dataclass(frozen=True)
class RngOperation:
    """See the module's docstring. seed, offset: integers of 64 bits, as numbers or as tensors of one element."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_RNG
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.POINTWISE

    rng: Rng = attribute(
        AttributeName.OPERATION_RNG_DESC, AttributeType.BACKEND_DESCRIPTOR, descriptor=DescriptorType.RNG
    )
    y: Tensor = tensor_output(AttributeName.OPERATION_RNG_YDESC)
    seed: Tensor | int = tensor_input(AttributeName.OPERATION_RNG_SEED, or_number=True, default=0)
    offset: Tensor | None = tensor_input(AttributeName.OPERATION_RNG_OFFSET_DESC, default=None)

    def __post_init__(self) -> None:
        kind = dtypes.info(self.y.data_type).kind
        if self.rng.distribution is not RngDistribution.BERNOULLI and kind is not dtypes.Kind.FLOAT:
            raise UnsupportedDataTypeError.at(
                "rng.y.data_type", expected=f"a float type for {self.rng.distribution.name}", got=self.y.data_type.name
            )
        for port, tensor in (("seed", self.seed), ("offset", self.offset)):
            if isinstance(tensor, Tensor):
                _check_scalar(port, tensor)
        if isinstance(self.seed, int) and not -(2**63) <= self.seed < 2**63:
            raise BadParamError.at("rng.seed", expected="a signed integer of 64 bits", got=self.seed)

    @property
    def output(self) -> Tensor:
        return self.y

    @property
    def compute_type(self) -> DataType:
        """The type of the arithmetic: DOUBLE where y has it, otherwise FLOAT."""
        return DataType.DOUBLE if self.y.data_type is DataType.DOUBLE else DataType.FLOAT

    @property
    def flops(self) -> int:
        return _FLOPS * self.y.element_count

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        seed = self.seed if isinstance(self.seed, int) else int(inputs["seed"].item())
        offset = int(inputs["offset"].item()) if self.offset is not None else 0
        indices = np.arange(self.y.element_count, dtype=np.uint64)
        if self.rng.distribution is RngDistribution.NORMAL:
            even = indices & ~np.uint64(1)
            first, second = (self._uniform(philox.words(seed, offset, even + np.uint64(n))) for n in (0, 1))
            return {"y": self._normal(first, second, indices > even).reshape(self.y.dims)}
        words = philox.words(seed, offset, indices).reshape(self.y.dims)
        if self.rng.distribution is RngDistribution.BERNOULLI:
            return {"y": words < self.rng.threshold}
        return {"y": self._scaled(self._uniform(words))}

    def _uniform(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        """u of the module's docstring."""
        numbers = (words | np.uint64(1)).astype(np.float64)
        if self.compute_type is DataType.FLOAT:
            fraction, exponent = np.frexp(numbers)
            numbers = np.ldexp(np.floor(np.ldexp(fraction, 24)), exponent - 24)
        return numbers / _WORDS

    def _scaled(self, uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        lowest, span = map(self._held, self.rng.parameters.values())
        return lowest + uniform * span

    def _normal(
        self, first: NDArray[np.float64], second: NDArray[np.float64], is_odd: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        radius, angle = np.sqrt(-2.0 * np.log(first)), 2.0 * np.pi * second
        numbers = radius * np.where(is_odd, np.sin(angle), np.cos(angle))
        mean, deviation = map(self._held, self.rng.parameters.values())
        return mean + deviation * numbers

    def _held(self, parameter: float) -> float:
        """A parameter as the arithmetic holds it."""
        return float(dtypes.rounded(np.asarray(parameter), self.compute_type))


def _check_scalar(port: str, tensor: Tensor) -> None:
    if tensor.element_count != 1:
        raise BadParamError.at(f"rng.{port}.dims", expected="one element", got=list(tensor.dims))
    if tensor.data_type not in (DataType.INT32, DataType.INT64):
        raise UnsupportedDataTypeError.at(f"rng.{port}.data_type", expected="INT32 or INT64", got=tensor.data_type.name)
