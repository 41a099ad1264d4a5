"""The page of names that cuDNN and cudnn-frontend have, and that lowdnn refuses or ignores.

Names, attributes and functions come from the tables that the code reads. Arguments and values of enums are listed here;
``tests/guide/test_refused.py`` holds them to the code.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lowdnn import capi
from lowdnn.backend.inert import INERT_ATTRIBUTES
from lowdnn.backend.uncomputed import (
    UNCOMPUTED_ATTRIBUTES,
    UNCOMPUTED_REORDERINGS,
    UNCOMPUTED_TYPES,
    UNCOMPUTED_VECTOR_COUNTS,
)
from lowdnn.enums import KnobType
from lowdnn.frontend.enums import knob_type
from lowdnn.frontend.refused_methods import RefusedMethod, RefusedMethods
from lowdnn.frontend.refused_names import REFUSED_GROUPS


@dataclass(frozen=True)
class Ignored:
    """Arguments that are checked, and change nothing.

    of: the functions; methods of pygraph, and C functions, by their names alone.
    """

    arguments: tuple[str, ...]
    of: tuple[str, ...]
    why: str


_SDPA = ("sdpa", "sdpa_fp8", "sdpa_backward", "sdpa_fp8_backward")
_MOVES = ("reshape", "transpose", "slice", "concatenate")
_NORMS = ("batchnorm", "layernorm", "rmsnorm", "instancenorm", "groupnorm", "adalayernorm", "lrn")
_IN_FLOAT = (*_NORMS, "divisive_normalization", "rope", "causal_conv1d", "b2b_causal_conv1d")

_BATCH_NORMS = ("cudnnBatchNormalizationForwardTrainingEx", "cudnnBatchNormalizationBackwardEx")
_NORMALISATIONS = ("cudnnNormalizationForwardTraining", "cudnnNormalizationBackward")

IGNORED_ARGUMENTS: Final = (
    Ignored(("is_dynamic_shape_enabled",), ("pygraph",), "kernels take extents at run time"),
    Ignored(("is_cuda_graph_replay_expected",), ("pygraph",), "every plan may be captured and replayed"),
    Ignored(("cuda_graph_retention",), ("pygraph",), "kernels stay loaded until the handle is closed"),
    Ignored(("include_kernels",), ("serialize",), "a plan names its kernels and never holds their code"),
    Ignored(("handle",), ("get_workspace_size", "get_workspace_size_plan_at_index"), "a graph has one handle"),
    Ignored(("implementation",), ("sdpa", "sdpa_fp8"), "the graph decides which kernels run"),
    Ignored(("unfuse_fma",), ("sdpa", "sdpa_fp8"), "it asks for another rounding, which cuDNN has for Blackwell"),
    Ignored(
        ("max_total_seq_len_q", "max_total_seq_len_kv"),
        _SDPA,
        "no workspace depends on them, since rows past a sequence's length are not read",
    ),
    Ignored(
        ("compute_data_type",),
        ("softmax", "causal_conv1d_update", *_SDPA, *_IN_FLOAT, *(f"{name}_backward" for name in _IN_FLOAT)),
        "the arithmetic is FLOAT, or DOUBLE where the input is",
    ),
    Ignored(("compute_data_type",), _MOVES, "nothing is computed"),
    Ignored(("rnn_desc",), ("adv.build_rnn_dynamic",), "plans are made at the first call with a problem"),
    Ignored(("tag",), ("cudnnQueryRuntimeError",), "no kernel reports errors by itself"),
    Ignored(
        ("reorderType",),
        ("cudnnReorderFilterAndBias", "cudnnSetConvolutionReorderType"),
        "filters keep their order, which every engine reads",
    ),
    Ignored(
        ("reserveSpace", "reserveSpaceSizeInBytes"),
        (*_BATCH_NORMS, *_NORMALISATIONS),
        "the gradients are computed from x and the statistics",
    ),
    Ignored(
        ("mode", "bnOps", "activationDesc"),
        ("cudnnGetBatchNormalizationTrainingExReserveSpaceSize",),
        "the size is 0",
    ),
    Ignored(("activationDesc",), ("cudnnGetNormalizationTrainingReserveSpaceSize",), "the size is 0"),
    Ignored(("bnBiasData",), _BATCH_NORMS[1:], "no gradient depends on the bias"),
    Ignored(("normBiasData",), _NORMALISATIONS[1:], "no gradient depends on the bias"),
    Ignored(("lrnMode",), ("cudnnLRNCrossChannelForward", "cudnnLRNCrossChannelBackward"), "there is one mode"),
)
#: Arguments that are refused unless they are what is named: the argument, what it may be, and what to do instead.
REFUSED_ARGUMENTS: Final = (
    ("deserialize.enforce_precompiled", "False", "ship the disk cache of kernels with the plan"),
    ("reduction.group_offset", "None", "reduce each group by an operation of its own"),
    ("block_scale_quantize.group_offset", "None", "quantise each group by an operation of its own"),
    ("block_scale_dequantize.is_negative_scale", "False", "negate the result"),
    ("moe_grouped_matmul.top_k_scores", "None", "multiply the rows by their scores afterwards"),
    ("Tensor.set_vector_count_and_dimension.count", "1", "use strides for the dimension"),
)
#: Members of enums that raise NotSupportedError where they are used, and why.
REFUSED_MEMBERS: Final = (
    ("heur_mode.OPENSOURCE", "it names engines of another library"),
    ("moe_grouped_matmul_mode.COMBINE", "no engine adds up the rows of several experts; a reduction does"),
    ("CUDNN_BN_FINALIZE_STATISTICS_INFERENCE", "inference needs no statistics; use the norm's inference"),
    ("CUDNN_NORM_FWD_INFERENCE of BATCH_NORM", "inference is a pointwise operation, `batchnorm_inference`"),
    ("CUDNN_NOT_PROPAGATE_NAN of pointwise operations", "NaN always propagates; poolings have both"),
)
_INTRODUCTION = """\
# Names that are refused or ignored

Every name of cuDNN 9.28 and of cudnn-frontend 1.32 is there, so that programs can be imported, linked and compiled
unchanged. This page lists those that do not do here what they do there. What is *ignored* cannot change a result. What
is *refused* raises `NotSupportedError` when it is used (`cudnnGraphNotSupportedError` in cudnn-frontend's terms,
`CUDNN_STATUS_NOT_SUPPORTED` in C), with the reason. `lowdnn guide coverage` has the types and layouts that each
operation takes; `DIVERGENCES.md` has differences of behaviour.
"""


def page() -> str:
    """The Markdown of the page."""
    parts = (_ignored, _refused_arguments, _refused_python, _refused_backend, _refused_functions)
    return "\n".join((_INTRODUCTION, *(line for part in parts for line in part()))).rstrip() + "\n"


def _ignored() -> Iterator[str]:
    yield "## Ignored: arguments\n"
    yield "Names of functions by themselves are methods of pygraph, or functions of C.\n"
    rows = ((", ".join(row.arguments), ", ".join(row.of), row.why) for row in IGNORED_ARGUMENTS)
    yield from _table(("argument", "of", "why it changes nothing"), rows)
    yield "## Ignored: backend attributes\n"
    yield "They are set, checked and read back. A value that is not listed is refused.\n"
    yield from _table(
        ("attribute", "values", "why it changes nothing"),
        (
            (
                f"CUDNN_ATTR_{name.name}",
                ", ".join(getattr(value, "name", str(value)) for value in inert.values) or "any",
                inert.reason,
            )
            for attributes in INERT_ATTRIBUTES.values()
            for name, inert in attributes.items()
        ),
    )


def _refused_arguments() -> Iterator[str]:
    yield "## Refused: arguments\n"
    yield from _table(("argument", "may be", "instead"), REFUSED_ARGUMENTS)
    yield "## Refused: members of enums\n"
    yield from _table(("member", "why"), REFUSED_MEMBERS)
    knobs = [knob.name for knob in knob_type if knob is not knob_type.NOT_SET and knob.name not in KnobType.__members__]
    yield "Of `knob_type`, since no engine has such a knob:\n"
    yield from _block(knobs)


def _refused_python() -> Iterator[str]:
    yield "## Refused: methods of pygraph\n"
    methods = {name: found for name, found in vars(RefusedMethods).items() if isinstance(found, RefusedMethod)}
    for what in dict.fromkeys(found.what for found in methods.values()):
        yield f"{_sentence(what)}:\n"
        yield from _block(name for name, found in methods.items() if found.what == what)
    yield "## Refused: names of cudnn-frontend\n"
    yield "They stand for kernels and packages that cudnn-frontend brings itself. Calling one is refused.\n"
    for subject, instead, names in REFUSED_GROUPS:
        yield f"{_sentence(subject)}{'. Instead, ' + instead if instead else ''}:\n"
        yield from _block(names.split())


def _refused_backend() -> Iterator[str]:
    yield "## Refused: backend descriptors and attributes\n"
    yield "They are set, checked, finalized and read back. A plan of a graph with one is refused, with the reason.\n"
    counts = " and ".join(map(str, UNCOMPUTED_VECTOR_COUNTS))
    rows = [
        ("data types " + ", ".join(kind.name for kind in UNCOMPUTED_TYPES), "convert to a type that engines have"),
        (f"CUDNN_ATTR_TENSOR_VECTOR_COUNT of {counts}", "use NHWC strides instead"),
        ("reorderings " + ", ".join(order.name for order in UNCOMPUTED_REORDERINGS), "leave the elements in order"),
        ("CUDNN_BACKEND_OPERATION_SIGNAL_DESCRIPTOR", "wait for events between graphs"),
    ]
    for attributes in UNCOMPUTED_ATTRIBUTES.values():
        rows += [(f"CUDNN_ATTR_{item.name.name}", instead) for item, instead in attributes if item.name is not None]
    yield from _table(("refused", "instead"), rows)


def _refused_functions() -> Iterator[str]:
    reasons = capi.support()
    refused = {name: why for name, why in reasons.items() if why}
    yield "## Refused: functions of the C library\n"
    yield f"Of cuDNN's {len(reasons)} functions, these {len(refused)} return `CUDNN_STATUS_NOT_SUPPORTED`.\n"
    for family in dict.fromkeys(refused.values()):
        yield f"{_sentence(family)}:\n"
        yield from _block(name for name, why in refused.items() if why == family)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _block(names: Iterable[str]) -> Iterator[str]:
    yield "```text"
    yield from textwrap.wrap(" ".join(names), 110, break_long_words=False, break_on_hyphens=False)
    yield "```\n"
