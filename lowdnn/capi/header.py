"""The C header of the library: prototypes of all functions, enums with their values, structures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Final

from lowdnn import enums, rnn_enums, subquadratic_enums
from lowdnn.capi import classic_enums
from lowdnn.capi.prototypes import is_opaque
from lowdnn.capi.signatures import CType, Function, functions
from lowdnn.enums import CudnnEnum
from lowdnn.mirrored import MIRRORED_CUDNN_VERSION
from lowdnn.status import Status

_WIDTH: Final = 118

#: C names of types that are not ``cudnn<base>_t``.
_C_TYPES: Mapping[str, str] = {
    "int": "int",
    "uint": "unsigned",
    "i32": "int32_t",
    "u32": "uint32_t",
    "i64": "int64_t",
    "u64": "unsigned long long",
    "size": "size_t",
    "float": "float",
    "double": "double",
    "void": "void",
    "char": "char",
    "Stream": "cudaStream_t",
    "Graph": "cudaGraph_t",
    "LibraryProperty": "libraryPropertyType",
}
#: Enums of cudnn_graph.h whose C type has another name than their class.
_GRAPH_ENUMS: Mapping[type[CudnnEnum], str] = {
    enums.AttributeName: "BackendAttributeName",
    enums.AttributeType: "BackendAttributeType",
    enums.BehaviorNote: "BackendBehaviorNote",
    enums.CtcGradMode: "CTCGradMode",
    enums.DescriptorType: "BackendDescriptorType",
    enums.HeurMode: "BackendHeurMode",
    enums.KnobType: "BackendKnobType",
    enums.LayoutType: "BackendLayoutType",
    enums.NormFwdPhase: "BackendNormFwdPhase",
    enums.NormMode: "BackendNormMode",
    enums.NumericalNote: "BackendNumericalNote",
    enums.OperationGraphMode: "BackendOperationGraphMode",
    enums.ReshapeMode: "BackendReshapeMode",
    enums.TensorReordering: "BackendTensorReordering",
}
#: Macros that are neither enums nor versions.
_CONSTANTS: Mapping[str, str] = {
    "CUDNN_DIM_MAX": str(enums.DIM_MAX),
    "CUDNN_NUMERICAL_NOTE_TYPE_COUNT": "10",
    "CUDNN_BEHAVIOR_NOTE_TYPE_COUNT": "5",
    "CUDNN_KNOB_TYPE_COUNTS": "46",
    "CUDNN_LAYOUT_TYPE_COUNT": "4",
    "CUDNN_HEUR_MODES_COUNT": "4",
    "CUDNN_SEV_ERROR_EN": "(1U << CUDNN_SEV_ERROR)",
    "CUDNN_SEV_WARNING_EN": "(1U << CUDNN_SEV_WARNING)",
    "CUDNN_SEV_INFO_EN": "(1U << CUDNN_SEV_INFO)",
    "CUDNN_BN_MIN_EPSILON": "0.0",
    "CUDNN_LRN_MIN_N": "1",
    "CUDNN_LRN_MAX_N": "16",
    "CUDNN_LRN_MIN_K": "1e-5",
    "CUDNN_LRN_MIN_BETA": "0.01",
    "CUDNN_RNN_PADDED_IO_DISABLED": "0",
    "CUDNN_RNN_PADDED_IO_ENABLED": "1U",
    "CUDNN_SEQDATA_DIM_COUNT": "4",
    "CUDNN_ATTN_QUERYMAP_ALL_TO_ONE": "0",
    "CUDNN_ATTN_QUERYMAP_ONE_TO_ONE": "1U",
    "CUDNN_ATTN_DISABLE_PROJ_BIASES": "0",
    "CUDNN_ATTN_ENABLE_PROJ_BIASES": "2U",
    "CUDNN_ATTN_WKIND_COUNT": "8",
}
_PERFORMANCE = (
    "cudnnStatus_t status",
    "float time",
    "size_t memory",
    "cudnnDeterminism_t determinism",
    "cudnnMathType_t mathType",
    "int reserved[3]",
)
#: The fields of each structure that callers look into.
_STRUCTURES: Mapping[str, tuple[str, ...]] = {
    "cudnnFraction_t": ("int64_t numerator", "int64_t denominator"),
    "cudnnDebug_t": (
        "unsigned cudnn_version",
        "cudnnStatus_t cudnnStatus",
        "unsigned time_sec",
        "unsigned time_usec",
        "unsigned time_delta",
        "cudnnHandle_t handle",
        "cudaStream_t stream",
        "unsigned long long pid",
        "unsigned long long tid",
        "int cudaDeviceId",
        "int reserved[15]",
    ),
    "cudnnConvolutionFwdAlgoPerf_t": ("cudnnConvolutionFwdAlgo_t algo", *_PERFORMANCE),
    "cudnnConvolutionBwdDataAlgoPerf_t": ("cudnnConvolutionBwdDataAlgo_t algo", *_PERFORMANCE),
    "cudnnConvolutionBwdFilterAlgoPerf_t": ("cudnnConvolutionBwdFilterAlgo_t algo", *_PERFORMANCE),
    "cudnnGnnCscGraph_t": (
        "const void *cscOffsets",
        "const void *cscIndices",
        "const void *mapCscToCoo",
        "const void *mapRevToCoo",
        "int64_t nSrcNodes",
        "int64_t nDstNodes",
        "int64_t nIndices",
        "cudnnDataType_t idxType",
        "const void *cscRevOffsets",
    ),
    "cudnnGnnMhaParams_t": (
        "cudnnGnnActivationOp_t activation",
        "float activationAlpha",
        "int numHeads",
        "int concatHeads",
    ),
}
_CUDA_TYPES = """typedef struct CUstream_st *cudaStream_t;
typedef struct CUgraph_st *cudaGraph_t;
#ifndef __LIBRARY_TYPES_H__
typedef enum { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL } libraryPropertyType;
#endif"""
_CALLBACK = (
    "typedef void (*cudnnCallback_t)(cudnnSeverity_t sev, void *udata, const cudnnDebug_t *dbg, const char *msg);"
)


def write_header(path: str | os.PathLike[str]) -> None:
    """Writes a header for C and C++ that stands for all of cuDNN's; it needs no header of CUDA."""
    with open(path, "w", encoding="ascii") as file:
        file.write(header())


def header() -> str:
    """The text that ``write_header`` writes."""
    version = zip(("MAJOR", "MINOR", "PATCHLEVEL"), MIRRORED_CUDNN_VERSION, strict=True)
    macros = [f"#define CUDNN_{name} {number}" for name, number in version]
    macros.append("#define CUDNN_VERSION (CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL)")
    macros += [f"#define {name} {value}" for name, value in _CONSTANTS.items()]
    blocks = [
        "/* The C API of cuDNN as lowdnn has it; written by lowdnn.capi.write_header. */",
        "#ifndef LOWDNN_CUDNN_H\n#define LOWDNN_CUDNN_H\n#include <stddef.h>\n#include <stdint.h>",
        "\n".join(macros),
        '#ifdef __cplusplus\nextern "C" {\n#endif',
        _CUDA_TYPES,
        "\n".join(_opaque_types()),
        *_enums(),
        *(_structure(name, fields) for name, fields in _STRUCTURES.items()),
        _CALLBACK,
        *_prototypes(),
        "#ifdef __cplusplus\n}\n#endif\n#endif",
    ]
    return "\n\n".join(blocks) + "\n"


def _opaque_types() -> Iterator[str]:
    bases = {argument.type.base for function in functions().values() for argument in function.arguments}
    for base in sorted(bases - _C_TYPES.keys() - {"BackendDescriptor", "Callback"}):
        if is_opaque(base):
            yield f"typedef struct cudnn{base}Struct *cudnn{base}_t;"
    yield "typedef void *cudnnBackendDescriptor_t;"
    yield "typedef struct cudnnRuntimeTag cudnnRuntimeTag_t;"


def _enums() -> Iterator[str]:
    names = Status.__members__
    yield _enum("Status", [(f"{Status.SUCCESS.c_name.removesuffix('SUCCESS')}{name}", names[name]) for name in names])
    for module in (enums, classic_enums, rnn_enums, subquadratic_enums):
        for cls in vars(module).values():
            is_enum = isinstance(cls, type) and issubclass(cls, CudnnEnum) and cls is not CudnnEnum
            if is_enum and cls.__module__ == module.__name__:
                yield _enum(_GRAPH_ENUMS.get(cls, cls.__name__), _members(cls))


def _members(cls: type[CudnnEnum]) -> list[tuple[str, int]]:
    """C names and values; a second name of a value has the prefix of the first."""
    return [
        (member.c_name.removesuffix(member.name) + name if member.name != name else member.c_name, int(member))
        for name, member in cls.__members__.items()
    ]


def _enum(base: str, members: list[tuple[str, int]]) -> str:
    return "typedef enum {\n" + "".join(f"  {name} = {int(value)},\n" for name, value in members) + f"}} cudnn{base}_t;"


def _structure(name: str, fields: tuple[str, ...]) -> str:
    return "typedef struct {\n" + "".join(f"  {field};\n" for field in fields) + f"}} {name};"


def _prototypes() -> Iterator[str]:
    for name, group in groupby(functions().values(), lambda function: function.header):
        yield f"/* {name} */\n" + "\n".join(map(_prototype, group))


def _prototype(function: Function) -> str:
    arguments = [_declared(argument.type, argument.name) for argument in function.arguments] or ["void"]
    lines, line = [], _declared(function.result, function.name) + "("
    for index, argument in enumerate(arguments):
        text = argument + (");" if index == len(arguments) - 1 else ", ")
        if len(line) + len(text.rstrip()) > _WIDTH:
            lines.append(line.rstrip())
            line = "    "
        line += text
    return "\n".join([*lines, line])


def _declared(kind: CType, name: str) -> str:
    base = _C_TYPES.get(kind.base, f"cudnn{kind.base}_t")
    return f"{'const ' if kind.is_const else ''}{base} {'*' * kind.pointers}{name}"
