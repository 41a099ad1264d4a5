"""Methods of cudnn-frontend's pygraph for what no engine computes: they are there, and raise NotSupportedError."""

from __future__ import annotations

from typing import Any, NoReturn

from lowdnn.frontend.data_types import DataTypeLike
from lowdnn.status import NotSupportedError


class _Refused:
    """A method that raises NotSupportedError.  what: the result that it would compute."""

    def __init__(self, what: str) -> None:
        self._what = what

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
        raise NotSupportedError.at(f"pygraph.{self._name}", expected="what an engine computes", got=self._what)


_LINEAR = "linear attention, which keeps a state instead of scores"
_MXFP8 = "attention in fp8 with a scale for every 32 elements"


class RefusedMethods:
    """See the module's docstring."""

    gdn = _Refused(_LINEAR)
    gdn_bwd = _Refused(_LINEAR)
    gdn_summary = _Refused(_LINEAR)
    gdn_summary_bwd = _Refused(_LINEAR)
    gdn2 = _Refused(_LINEAR)
    gdn2_bwd = _Refused(_LINEAR)
    gdn2_summary = _Refused(_LINEAR)
    gdn2_summary_bwd = _Refused(_LINEAR)
    gdp = _Refused(_LINEAR)
    gdp_bwd = _Refused(_LINEAR)
    gdp_summary = _Refused(_LINEAR)
    gdp_summary_bwd = _Refused(_LINEAR)
    kda = _Refused(_LINEAR)
    kda_bwd = _Refused(_LINEAR)
    kda_summary = _Refused(_LINEAR)
    kda_summary_bwd = _Refused(_LINEAR)
    mamba2 = _Refused(_LINEAR)
    mamba2_bwd = _Refused(_LINEAR)
    mamba2_summary = _Refused(_LINEAR)
    mamba2_summary_bwd = _Refused(_LINEAR)
    sdpa_mxfp8 = _Refused(_MXFP8)
    sdpa_mxfp8_backward = _Refused(_MXFP8)
