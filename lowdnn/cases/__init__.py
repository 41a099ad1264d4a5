"""Cases: one line of text is one graph with its input data.

    conv n=2 c=8 hw=16x16 k=16 rs=3x3 pad=1 stride=1 dil=1 groups=1 layout=nhwc dtype=bf16 epilogue=bias+relu
    conv n=2 c=8 hw=16x16 k=16 rs=3x3 pad=1 stride=2 dir=dgrad
    conv n=2 c=8 hw=16x16 k=16 rs=3x3 pad=1 dtype=bf16 prologue=scale+bias+relu
    matmul b=2 m=64 n=96 k=40 layout=nt dtype=fp16 epilogue=scale+gelu
    matmuls m=64x100 n=96x32 k=40x72 layout=nt dtype=bf16
    pointwise dims=2x3x8x8 ops=add+relu dtype=fp32 broadcast=channel
    reduction dims=4x8x16 axes=1,2 op=avg dtype=bf16 before=abs after=sqrt
    custom_reduction dims=4x8x16 axes=1,2 op=affine before=abs after=double
    resample n=2 c=8 hw=16x16 mode=max window=3 stride=2 pad=1 dtype=bf16 epilogue=relu
    resample n=2 c=8 hw=16x16 mode=linear size=32x32 dir=bwd
    moe experts=4 rows=300 n=96 k=64 mode=gather tokens=150 layout=nt dtype=bf16 epilogue=swish
    norm dims=64x768 mode=layer dtype=bf16 epilogue=relu
    softmax dims=64x768 dtype=bf16 dir=bwd
    sdpa b=2 h=8 hk=2 q=100 d=64 causal=top_left dtype=bf16 stats=yes
    sdpa_bwd b=2 h=8 hk=2 q=100 d=64 right=0 dtype=bf16
    rope b=2 h=8 s=100 d=64 dtype=bf16
    rnn cell=lstm t=12 b=4 i=32 h=64 layers=2 dtype=bf16
    transform op=transpose dims=2x3x8x8 perm=0,2,3,1 dtype=bf16
    block_scale dims=64x256 axis=1 block=32 dtype=bf16 out=e4m3
    graph ops=[{"class":"MatmulOperation",...}]
    rng dims=4x8x16 dist=bernoulli p=0.9 seed=7 offset=3 ops=mul+scalar dtype=bf16

Words are ``key=value`` in any order; keys with a default may be left out. They serve tests, ``lowdnn run``
and the benchmarks. ``#`` starts a comment in a file of cases, where a count and a tabulator may precede a case.
``graph`` is the family of all graphs that the others have no words for.

Each module of ``families`` holds the cases of related operations; ``case_families`` finds it, so no list names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from lowdnn.cases import families, text
from lowdnn.cases.base import Case
from lowdnn.documents import shown
from lowdnn.status import BadParamError

#: A line of a file of cases.
_COUNTED = re.compile(r"(?:(?P<count>[0-9]{1,18})\t)?(?P<case>.*)", re.DOTALL)


@cache
def case_families() -> Mapping[str, type[Any]]:
    """The classes of cases by the word that their lines start with."""
    modules = [import_module(f"{families.__name__}.{found.name}") for found in iter_modules(families.__path__)]
    classes = {cls for module in modules for cls in vars(module).values() if isinstance(cls, type)}
    found = {cls.family: cls for cls in classes if issubclass(cls, Case) and "family" in vars(cls)}
    return dict(sorted(found.items()))


def parse_case(line: str) -> Case:
    """The case of one line. Raises BadParamError naming the family or key, the rule and the value."""
    family, *words = line.split("#")[0].split() or [""]
    classes = case_families()
    if family not in classes:
        raise BadParamError.at("case", expected="a line that starts with " + ", ".join(classes), got=shown(line))
    case: Case = text.parse_fields(classes[family], family, words)
    return case


def parse_cases(lines: Iterable[str]) -> list[Case]:
    """The cases of a file's lines; blank and comment lines are left out, and counts."""
    return [case for _, case in parse_counted_cases(lines)]


def parse_counted_cases(lines: Iterable[str]) -> list[tuple[int, Case]]:
    """(count, case) of a file's lines, as ``LOWDNN_RECORD_CASES`` writes them; 1 for a line without a count."""
    contents = (_COUNTED.fullmatch(line) for line in lines if line.split("#")[0].strip())
    return [(int(found["count"] or 1), parse_case(found["case"])) for found in contents if found]
