"""Methods of cudnn-frontend's pygraph for what no engine computes; calling them raises NotSupportedError."""

from __future__ import annotations

from typing import Any, NoReturn

from lowdnn.frontend.data_types import DataTypeLike
from lowdnn.status import NotSupportedError


class RefusedMethod:
    """A method that raises NotSupportedError.  what: the result that it would compute."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __call__(
        self,
        *args: Any,
        name: str = "",
        compute_data_type: DataTypeLike = None,
        out_dims: object = None,
        **kwargs: Any,
    ) -> NoReturn:
        raise NotSupportedError.at(f"pygraph.{self._name}", expected="what an engine computes", got=self.what)


_LINEAR = "linear attention, which keeps a state instead of scores"
_MXFP8 = "attention in fp8 with a scale for every 32 elements"


class RefusedMethods:
    """See the module's docstring."""

    gdn = RefusedMethod(_LINEAR)
    gdn_bwd = RefusedMethod(_LINEAR)
    gdn_summary = RefusedMethod(_LINEAR)
    gdn_summary_bwd = RefusedMethod(_LINEAR)
    gdn2 = RefusedMethod(_LINEAR)
    gdn2_bwd = RefusedMethod(_LINEAR)
    gdn2_summary = RefusedMethod(_LINEAR)
    gdn2_summary_bwd = RefusedMethod(_LINEAR)
    gdp = RefusedMethod(_LINEAR)
    gdp_bwd = RefusedMethod(_LINEAR)
    gdp_summary = RefusedMethod(_LINEAR)
    gdp_summary_bwd = RefusedMethod(_LINEAR)
    kda = RefusedMethod(_LINEAR)
    kda_bwd = RefusedMethod(_LINEAR)
    kda_summary = RefusedMethod(_LINEAR)
    kda_summary_bwd = RefusedMethod(_LINEAR)
    mamba2 = RefusedMethod(_LINEAR)
    mamba2_bwd = RefusedMethod(_LINEAR)
    mamba2_summary = RefusedMethod(_LINEAR)
    mamba2_summary_bwd = RefusedMethod(_LINEAR)
    sdpa_mxfp8 = RefusedMethod(_MXFP8)
    sdpa_mxfp8_backward = RefusedMethod(_MXFP8)
