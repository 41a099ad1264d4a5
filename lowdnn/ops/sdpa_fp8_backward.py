"""The gradients of scaled dot product attention in fp8, with numbers that tensors are scaled by. With the names of
``sdpa_backward``, of inputs that are multiplied by their descales,

    dv = descale_s * fp8(scale_s * F * P)^T d_o        dp = scale * dS        dpr = descale_dp * fp8(scale_dp * dp)
    dq = dpr k        dk = dpr^T q

where weights are rounded to the type of q, dp to that of d_o. Stored are scale_dq * dq, scale_dk * dk, scale_dv * dv;
``largest`` are the largest magnitudes of dq, dk, dv, without their scales, and of dp.
All numbers have one element, in FLOAT. There is no dbias, and ``inner`` are factors of the weights alone.
Source: cudnn-frontend, docs/operations/Attention.md, "Scaled Dot Product Attention FP8 Backward". The backend has no
descriptor of this operation, so the numbers go by attributes of others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lowdnn import dtypes
from lowdnn.enums import DataType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.sdpa_backward import Array, SdpaBackward
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import tensor_inputs, tensor_outputs
from lowdnn.status import BadParamError, NotSupportedError, UnsupportedDataTypeError

#: Inputs that have a descale.
_DESCALED = ("q", "k", "v", "o", "d_o")
#: Results that have a scale.
_SCALED = ("dq", "dk", "dv")
#: Fields of ``numbers`` and ``largest``, in this order.
NUMBERS = (
    *(f"descale_{port}" for port in (*_DESCALED, "s", "dp")),
    *(f"scale_{port}" for port in ("s", *_SCALED, "dp")),
)
LARGEST = (*_SCALED, "dp")

_WHERE = "sdpa_fp8_backward"


@dataclass(frozen=True, kw_only=True)
class SdpaFp8Backward(SdpaBackward):
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType | None] = None

    numbers: tuple[Tensor, ...] = tensor_inputs()
    largest: tuple[Tensor, ...] = tensor_outputs()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dbias is not None:
            raise NotSupportedError.at(f"{_WHERE}.dbias", expected="none", got=self.dbias.label)
        if self.inner is not None and self.inner.made[:2] != self.inner.given[:2]:
            made = ", ".join(tensor.label for tensor in self.inner.made[:2])
            raise NotSupportedError.at(f"{_WHERE}.inner", expected="factors of the weights alone", got=made)
        for field, names in {"numbers": NUMBERS, "largest": tuple(f"amax_{port}" for port in LARGEST)}.items():
            tensors = getattr(self, field)
            if len(tensors) != len(names):
                raise BadParamError.at(f"{_WHERE}.{field}", expected=", ".join(names), got=f"{len(tensors)} tensors")
            for name, tensor in zip(names, tensors, strict=True):
                if tensor.element_count != 1:
                    got = list(tensor.dims)
                    raise BadParamError.at(f"{_WHERE}.{name}.dims", expected="one element", got=got)
                if tensor.data_type is not DataType.FLOAT:
                    got_type = tensor.data_type.name
                    raise UnsupportedDataTypeError.at(f"{_WHERE}.{name}.data_type", expected="FLOAT", got=got_type)

    def forward(self, inputs: Values) -> dict[str, Array]:
        results = super().forward(self._descaled(inputs))
        return results | {"o": results["o"] / _numbers(inputs)["descale_o"]}

    def _gradients(self, inputs: Values, *, rounds: bool) -> dict[str, Array]:
        numbers, real = _numbers(inputs), self._descaled(inputs)

        def rounded(values: Array, name: str, data_type: DataType) -> Array:
            scaled = numbers[f"scale_{name}"] * values
            return numbers[f"descale_{name}"] * (dtypes.rounded(scaled, data_type) if rounds else scaled)

        weights, ds = self._score_gradients(real, rounds=rounds)
        dp = self._scale(inputs) * ds
        gradients = self._products(real, rounded(weights, "s", self.q.data_type), rounded(dp, "dp", self.d_o.data_type))
        results = {port: numbers[f"scale_{port}"] * values for port, values in gradients.items()}
        for index, values in enumerate((gradients | {"dp": dp})[port] for port in LARGEST):
            results[f"largest[{index}]"] = np.abs(values).max(initial=0).reshape(self.largest[index].dims)
        return results

    def _descaled(self, inputs: Values) -> dict[str, Array]:
        numbers = _numbers(inputs)
        descaled = {port: numbers[f"descale_{port}"] * inputs[port] for port in _DESCALED if port in inputs}
        return {**inputs, **descaled}


def _numbers(inputs: Values) -> dict[str, float]:
    return {name: inputs[f"numbers[{index}]"].item() for index, name in enumerate(NUMBERS)}
