"""Random numbers in pygraph: a method of lowdnn's own, since cudnn-frontend has it in C++ only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowdnn.enums import DataType
from lowdnn.frontend.arguments import integer, integers, real
from lowdnn.frontend.builder import GraphBuilder
from lowdnn.frontend.calls import operation
from lowdnn.frontend.data_types import data_type
from lowdnn.frontend.enums import backend_distribution, rng_distribution, scalar_type
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.nodes import Lowered, Ports
from lowdnn.ops.base import Operation
from lowdnn.ops.rng import Rng, RngOperation
from lowdnn.ops.tensor import packed_strides


@dataclass(frozen=True)
class RngNode(Ports):
    """``inputs``: the seed where it is a tensor, then the offset."""

    inputs: tuple[Tensor, ...]
    seed: int | None
    distribution: Rng
    dims: tuple[int, ...]
    output_suffixes: tuple[str, ...] = ("Y",)

    @property
    def input_names(self) -> tuple[str, ...]:
        return ("OFFSET",) if self.seed is not None else ("SEED", "OFFSET")

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        (output,) = outputs
        if not output.get_dim():
            output.set_dim(self.dims)
        if not output.get_stride():
            output.set_stride(packed_strides(tuple(output.get_dim())))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        *seed, offset = map(lowered, self.inputs)
        y = lowered(outputs[0])
        return RngOperation(self.distribution, y, seed[0] if self.seed is None else self.seed, offset)


class RandomMethods(GraphBuilder):
    """See the module's docstring."""

    @operation
    def rng(
        self,
        dim: Sequence[int],
        seed: Tensor | int,
        offset: Tensor | int,
        distribution: rng_distribution = rng_distribution.BERNOULLI,
        *,
        probability: float = 0.5,
        minimum: float = 0.0,
        maximum: float = 1.0,
        mean: float = 0.0,
        standard_deviation: float = 1.0,
        name: str = "",
    ) -> Tensor:
        """Random numbers of ``dim``: functions of seed, offset and each element's row-major index alone.

        seed, offset: numbers, or tensors of one INT32 or INT64, in device memory or by value. Each offset has a stream
        of its own. probability: of a 1 (BERNOULLI). minimum, maximum: of UNIFORM. mean, standard_deviation: of NORMAL.
        """
        parameters = Rng(
            backend_distribution(distribution),
            mean=real(mean, "rng.mean"),
            standard_deviation=real(standard_deviation, "rng.standard_deviation"),
            maximum=real(maximum, "rng.maximum"),
            minimum=real(minimum, "rng.minimum"),
            probability=real(probability, "rng.probability"),
        )
        inputs = [] if not isinstance(seed, Tensor) else [seed]
        if not isinstance(offset, Tensor):
            value = integer(offset, "rng.offset")
            offset = self._register(
                Tensor(
                    data_type=data_type.INT64,
                    dim=(1,),
                    stride=(1,),
                    pass_by_value=value,
                    scalar_type=scalar_type.COMPILE_TIME_CONST,
                )
            )
        node = RngNode(
            (*inputs, offset),
            seed=None if isinstance(seed, Tensor) else integer(seed, "rng.seed"),
            distribution=parameters,
            dims=integers(dim, "rng.dim"),
        )
        return self._add(node, data_type.FLOAT, name)
