from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.cases import case_families, parse_case, parse_cases
from lowdnn.cases.base import Case
from lowdnn.cases.families.attention import AttentionCase
from lowdnn.cases.families.convolution import ConvolutionCase
from lowdnn.cases.oracle import evaluate
from lowdnn.cases.steps import STEPS
from lowdnn.enums import ConvolutionMode, DataType, PaddingMode, PointwiseMode, ReduceTensorOp, ResampleMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.reduction import ReductionOperation
from lowdnn.ops.resample_backward import ResampleBackward
from lowdnn.ops.resample_forward import ResampleForward
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.status import BadParamError, LowdnnError, ShapeMismatchError, UnsupportedDataTypeError
from tests.support.data import fresh_seed
from tests.support.errors import raises

FILES = sorted((Path(__file__).parents[1] / "cases").glob("*.txt"))


def cases_of(path: Path) -> list[Case]:
    return parse_cases(path.read_text().splitlines())


def test_there_are_cases_for_every_family() -> None:
    assert {case.family for path in FILES for case in cases_of(path)} == set(case_families())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_listed_cases(path: Path) -> None:
    cases = cases_of(path)
    assert len({str(case) for case in cases}) == len(cases) > 30
    for case in cases:
        assert parse_case(str(case)) == case
        graph = case.graph()
        for exact in (False, True):
            inputs = case.inputs(1, exact)
            outputs = evaluate(graph, inputs)
            assert set(outputs) == {tensor.uid for tensor in graph.outputs}, str(case)


def test_listed_pointwise_cases_have_every_mode() -> None:
    path = next(path for path in FILES if path.stem == "pointwise")
    modes = {op.mode for case in cases_of(path) for op in case.graph().operations if isinstance(op, PointwiseOperation)}
    assert modes == set(PointwiseMode)


def test_listed_reductions_have_every_operator() -> None:
    path = next(path for path in FILES if path.stem == "reduction")
    operations = [op for case in cases_of(path) for op in case.graph().operations]
    operators = {op.reduction.operator for op in operations if isinstance(op, ReductionOperation)}
    assert operators == set(ReduceTensorOp)


def test_convolution_text() -> None:
    case = parse_case("conv n=2 c=8 hw=9x7 k=4 rs=3x2 pad=0:1x2 stride=2 dil=1x3 groups=2 mode=flipped dtype=bf16")
    (operation,) = case.graph().operations
    assert isinstance(operation, ConvolutionForward)
    shape = operation.convolution
    assert (shape.pre_paddings, shape.post_paddings) == ((0, 2), (1, 2))
    assert (shape.strides, shape.dilations, shape.mode) == ((2, 2), (1, 3), ConvolutionMode.CONVOLUTION)
    assert (operation.x.dims, operation.w.dims, operation.groups) == ((2, 8, 9, 7), (4, 4, 3, 2), 2)
    assert operation.x.strides[1] == operation.w.strides[1] == operation.y.strides[1] == 1
    assert case.length == 24


@pytest.mark.parametrize(
    ("direction", "operation_type", "inputs", "output", "length"),
    [
        ("dgrad", ConvolutionBackwardData, {"dy": (2, 6, 5, 4), "w": (6, 4, 3, 3)}, (2, 8, 9, 7), 27),
        ("wgrad", ConvolutionBackwardFilter, {"dy": (2, 6, 5, 4), "x": (2, 8, 9, 7)}, (6, 4, 3, 3), 40),
    ],
)
def test_gradients_of_a_convolution(
    direction: str,
    operation_type: type[ConvolutionOperation],
    inputs: dict[str, tuple[int, ...]],
    output: tuple[int, ...],
    length: int,
) -> None:
    line = f"conv n=2 c=8 hw=9x7 k=6 rs=3x3 pad=1 stride=2 groups=2 dir={direction} beta=1 epilogue=store+bias"
    case = parse_case(line)
    graph = case.graph()
    operation = graph.operations[0]
    assert isinstance(operation, operation_type)
    assert {tensor.name: tensor.dims for tensor in graph.inputs if tensor.name in inputs} == inputs
    assert operation.output.dims == output
    assert graph.inputs[-1].dims == (1, output[1], 1, 1)
    assert operation.output.uid in case.inputs(seed=1, exact=True)
    assert case.length == length
    assert parse_case(str(case)) == case


def test_resample_text() -> None:
    text = "resample n=1 c=2 hw=5x6 mode=linear stride=1/2x4/8 pad=1/2:1x-1/4:2"
    case = parse_case(text)
    (operation,) = case.graph().operations
    assert isinstance(operation, ResampleForward)
    shape = operation.resample
    assert (shape.window_dims, shape.strides) == ((2, 2), (Fraction(1, 2), Fraction(1, 2)))
    assert (shape.pre_paddings, shape.post_paddings) == ((Fraction(1, 2), Fraction(-1, 4)), (1, 2))
    assert shape.mode is ResampleMode.BILINEAR
    assert str(case) == text.replace("4/8", "1/2")
    assert parse_case(str(case)) == case
    (gradient,) = parse_case("resample n=1 c=2 hw=5 mode=max window=2 dir=bwd").graph().operations
    assert isinstance(gradient, ResampleBackward)
    assert (gradient.index, gradient.resample.padding_mode) == (None, PaddingMode.NEG_INF_PAD)
    for key, value, rule in (("stride", "1/0", "numbers > 0"), ("window", "0", "numbers > 0"), ("pad", "a", "numbers")):
        with raises(BadParamError, f"resample.{key}", expected=rule, got=repr(value)):
            parse_case(f"resample n=1 c=2 hw=5 mode=max {key}={value}")


def test_text_is_canonical() -> None:
    text = "matmul k=5 dtype=bf16 n=4 m=3 layout=nn  # a comment"
    assert str(parse_case(text)) == "matmul m=3 n=4 k=5 dtype=bf16"
    case = parse_case("conv n=1 c=1 hw=8 k=1 rs=3 pad=1:2 alpha=0.1 beta=-1e-07 epilogue=store+relu")
    assert isinstance(case, ConvolutionCase)
    assert (case.alpha, case.beta, case.pad) == (0.1, -1e-7, ((1, 2),))
    assert parse_case(str(case)) == case


def test_default_types() -> None:
    graph = parse_case("conv n=1 c=4 hw=4x4 k=4 rs=1x1 dtype=int8 epilogue=bias").graph()
    types = {tensor.name: tensor.data_type for tensor in graph.tensors.values()}
    assert (types["x"], types["b"]) == (DataType.INT8, DataType.FLOAT)
    assert graph.outputs[0].data_type is DataType.INT32
    graph = parse_case("matmul m=4 n=4 k=4 dtype=fp64 epilogue=relu").graph()
    assert {tensor.data_type for tensor in graph.tensors.values()} == {DataType.DOUBLE}


def test_broadcasts() -> None:
    dims = {}
    for name in ("none", "batch", "channel", "row", "column", "scalar"):
        graph = parse_case(f"pointwise dims=2x3x4 ops=add broadcast={name}").graph()
        dims[name] = graph.inputs[1].dims
    assert dims == {
        "none": (2, 3, 4),
        "batch": (2, 1, 1),
        "channel": (1, 3, 1),
        "row": (1, 1, 4),
        "column": (2, 3, 1),
        "scalar": (1, 1, 1),
    }


def test_store_writes_the_value_so_far() -> None:
    graph = parse_case("matmul m=4 n=4 k=4 epilogue=store+bias+store+relu").graph()
    assert len(graph.outputs) == 3


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("norm dims=4x8 mode=rms scale=scale dtype=bf16 before=residual+store", ["y", "y", "inv_variance"]),
        ("softmax dims=4x8 dtype=bf16 before=residual+store+mul epilogue=neg", ["y", "y"]),
    ],
)
def test_store_before_a_row_operation_is_of_the_data_type(text: str, names: list[str]) -> None:
    outputs = parse_case(text).graph().outputs
    assert [tensor.name for tensor in outputs] == names
    assert outputs[0].data_type is DataType.BFLOAT16


def test_an_operand_behind_a_norm_lies_as_x_does() -> None:
    graph = parse_case("norm dims=2x8x4x4 mode=batch layout=nhwc epilogue=residual").graph()
    x, residual = graph.inputs[0], graph.inputs[-1]
    assert residual.strides == x.strides == (128, 1, 32, 8)


def test_every_step_builds() -> None:
    for name in STEPS:
        assert parse_case(f"pointwise dims=2x3 ops={name}").graph().outputs[0].dims == (2, 3)


@pytest.mark.parametrize(
    ("line", "where", "expected", "got"),
    [
        ("", "case", "a line that starts with b2b_causal_conv1d, block_scale", "''"),
        ("pool n=1", "case", "a line that starts with", "'pool n=1'"),
        ("matmul m=1 n=2", "matmul.k", "a value", "none; add k=..."),
        ("matmul m=1 n=2 k=x", "matmul.k", "an integer >= 0", "'x'"),
        ("matmul m=1 n=2 k=-1", "matmul.k", "an integer >= 0", "'-1'"),
        ("matmul m=1 n=2 k=3 k=4", "matmul.k", "each key once", "k=4"),
        ("matmul m=1 n=2 k=3 depth=4", "matmul.depth", "a key of m, n, k", "depth=4"),
        ("matmul m=1 n=2 k=3 fast", "matmul.fast", "key=value", "fast"),
        ("matmul m=1 n=2 k=3 layout=xy", "matmul.layout", "one of nn, nt, tn, tt", "'xy'"),
        ("matmul m=1 n=2 k=3 dtype=float", "matmul.dtype", "one of fp64, fp32", "'float'"),
        ("matmul m=1 n=2 k=3 epilogue=relu+swoosh", "matmul.epilogue", "names joined by '+'", "'relu+swoosh'"),
        ("conv n=1 c=1 hw=1x1x1x1 k=1 rs=1", "conv.hw", "1 to 3 integers", "'1x1x1x1'"),
        ("conv n=1 c=1 hw=8x8 k=1 rs=1x1 pad=1:-2", "conv.pad", "before:after", "'1:-2'"),
        ("conv n=1 c=1 hw=8x8 k=1 rs=1x1 alpha=one", "conv.alpha", "a finite number", "'one'"),
        ("reduction dims=2x3 axes=1,0 op=add", "reduction.axes", "ascending axes", "'1,0'"),
        ("reduction dims=2x3 axes=1 op=median", "reduction.op", "one of add, mul", "'median'"),
    ],
)
def test_bad_lines_name_key_rule_and_value(line: str, where: str, expected: str, got: str) -> None:
    with raises(BadParamError, where, expected=expected, got=got):
        parse_case(line)


@pytest.mark.parametrize(
    ("line", "error", "where"),
    [
        ("conv n=1 c=1 hw=8x8 k=1 rs=1x1 pad=1x1x1", BadParamError, "conv.pad"),
        ("conv n=1 c=1 hw=2x2 k=1 rs=3x3", ShapeMismatchError, "convolution.w.dims[2]"),
        ("conv n=1 c=4 hw=2x2 k=3 rs=1x1 groups=2", ShapeMismatchError, "convolution.w.dims[0]"),
        ("reduction dims=2x3 axes=2 op=add", BadParamError, "reduction.axes"),
        ("pointwise dims=2x3 ops=exp dtype=int32", UnsupportedDataTypeError, "pointwise.compute_type"),
        ("moe experts=2 rows=8 n=4 k=4 sizes=1x2x3", BadParamError, "moe.sizes"),
        ("moe experts=2 rows=8 n=4 k=4 sizes=3x4", BadParamError, "moe.sizes"),
        ("moe experts=1 batches=2 rows=8 n=4 k=4", BadParamError, "moe.ends"),
        ("matmuls m=8x8 n=4 k=4x4", BadParamError, "matmuls.n, k"),
        ("pointwise dims=2x3 ops=gen_index axis=2", BadParamError, "pointwise.axis"),
        ("rnn cell=lstm t=5 b=3 i=8 h=16 lengths=5x6x1", BadParamError, "rnn.lengths"),
        ("rnn cell=lstm t=5 b=3 i=8 h=16 lengths=5x4", BadParamError, "rnn.lengths"),
        ("rnn cell=lstm t=5 b=3 i=8 h=16 lengths=4x5x1 layout=packed", BadParamError, "rnn.lengths"),
        ("rnn cell=lstm t=5 b=3 i=8 h=16 lengths=0x0x0 layout=packed", ShapeMismatchError, "rnn_forward.x.dims"),
        ("rnn cell=lstm t=5 b=3 i=8 h=16 layout=packed", BadParamError, "rnn.lengths"),
        ("rnn cell=lstm t=5 b=3 i=8 h=16 input=skip", BadParamError, "rnn.input_size"),
        ("rnn cell=lstm t=5 b=3 i=8 h=16 proj=16", BadParamError, "rnn.projection_size"),
        ("rnn cell=gru t=5 b=3 i=8 h=16 clip=1", BadParamError, "rnn.clip"),
        ("rnn cell=tanh t=5 b=3 i=8 h=16 reset=before", BadParamError, "rnn.reset_after"),
        ("rnn cell=lstm t=5 b=3 i=8 h=16 tf32=yes dtype=fp16", BadParamError, "rnn_forward.rnn.uses_tf32"),
        ("rnn cell=lstm t=5 b=3 i=8 h=16 add=yes dir=dgrad", BadParamError, "rnn.add"),
        ("rnn cell=lstm t=5 b=3 i=8 h=16 fill=-1 dir=bwd", BadParamError, "rnn.fill"),
    ],
)
def test_values_that_do_not_fit_together_are_refused(line: str, error: type[LowdnnError], where: str) -> None:
    with raises(error, where):
        parse_case(line).graph()


def test_inputs_repeat_with_their_seed() -> None:
    case = parse_case("matmul m=4 n=5 k=6 dtype=bf16 epilogue=bias+scalar")
    seed = fresh_seed()
    first, second, other = (case.inputs(s, exact=False) for s in (seed, seed, seed + 1))
    assert set(first) == {tensor.uid for tensor in case.graph().inputs}
    for uid in first:
        np.testing.assert_array_equal(first[uid], second[uid])
    assert any((first[uid] != other[uid]).any() for uid in first)


def test_beta_asks_for_the_old_output() -> None:
    case = parse_case("conv n=1 c=4 hw=4x4 k=4 rs=1x1 beta=0.5 epilogue=store+relu")
    assert sorted(case.inputs(0, exact=True)) == [1, 2, 3]


@pytest.mark.parametrize("line", ["matmul m=8 n=8 k=4096", "conv n=1 c=512 hw=3x3 k=4 rs=3x3 dtype=bf16"])
def test_exact_sums_fit_fp32(line: str) -> None:
    case = parse_case(line)
    graph = case.graph()
    values = [dtypes.to_values(array, graph.tensors[uid].data_type) for uid, array in case.inputs(3, True).items()]
    assert all((value == np.rint(value)).all() for value in values)
    largest = np.prod([np.abs(value).max() for value in values])
    assert 0 < largest * case.length <= 2**24


def test_exactness() -> None:
    assert parse_case("matmul m=1 n=1 k=1 epilogue=bias+relu").is_exact
    assert not parse_case("matmul m=1 n=1 k=1 epilogue=bias+gelu").is_exact
    assert not parse_case("reduction dims=4 axes=0 op=add after=sqrt").is_exact


def test_exits() -> None:
    case = parse_case("conv n=2 c=4 hw=6x6 k=8 rs=3x3 pad=1 dtype=bf16 epilogue=relu exits=genstats+sum+amax")
    graph = case.graph()
    value = graph.outputs[0]
    assert (value.dims, value.data_type) == ((2, 8, 6, 6), DataType.BFLOAT16)
    assert [(t.dims, t.data_type) for t in graph.outputs[1:]] == [((1, 8, 1, 1), DataType.FLOAT)] * 3 + [
        ((1, 1, 1, 1), DataType.FLOAT)
    ]
    assert case.is_exact
    inputs = case.inputs(seed=1, exact=True).values()
    assert all(np.abs(dtypes.to_values(values, DataType.BFLOAT16)).max() == 1 for values in inputs)
    assert not parse_case("matmul m=1024 n=64 k=64 exits=sum").is_exact
    assert parse_case("matmul m=1024 n=64 k=64 exits=amax").is_exact
    columns = parse_case("matmul b=2 m=4 n=8 k=4 exits=sum").graph().outputs[-1]
    assert columns.dims == (1, 1, 8)


@pytest.mark.parametrize(
    "words",
    [
        "hk=2 q=5 kv=7 right=0 place=bottom_right",
        "hk=2 hv=1 q=5 left=2 right=0 dv=16 layout=bshd scale=none",
        "q=1 kv=7 lengths=both index=int64 scale=host dtype=fp16",
        "q=5 kv=1 lengths=kv scale=device deterministic=yes layout=sbhd out=fp32",
    ],
)
def test_gradients_of_attention_start_from_what_belongs_together(words: str) -> None:
    """o and stats: exponentials of scores relative to stats sum to 1, or to 0 where the gradient of q is 0."""
    case = parse_case(f"sdpa_bwd b=2 h=4 d=8 {words}")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    (operation,) = graph.operations
    assert isinstance(operation, SdpaBackward)
    q, k, stats = (dtypes.to_values(inputs[t.uid], t.data_type) for t in (operation.q, operation.k, operation.stats))
    scale = 1.0 if operation.scale is None else 8**-0.5
    weights = np.exp(scale * (q @ np.repeat(k, 4 // k.shape[1], 1).swapaxes(2, 3)) - stats)
    dq = evaluate(graph, inputs)[operation.dq.uid]
    for b, h, r in np.ndindex(*q.shape[:3]):
        if np.isneginf(stats[b, h, r]):
            assert not dq[b, h, r].any()
        elif operation.right is None and operation.seq_len_kv is None:
            assert weights[b, h, r].sum() == pytest.approx(1, abs=1e-5)
    assert parse_case(str(case)) == case


@pytest.mark.parametrize("ragged", ["yes", "even"])
def test_attention_of_ragged_sequences_is_routed_as_self_attention(ragged: str) -> None:
    case = parse_case(f"sdpa b=5 h=2 q=9 d=16 ragged={ragged} lengths=yes stats=lse")
    assert isinstance(case, AttentionCase)
    named = _named(case.graph(), case.routing(1))
    lengths = named.pop("lengths").flatten()
    assert list(named) == [f"{name}_ragged_offset" for name in ("q", "k", "v", "stats", "c")]
    for offsets in named.values():
        assert np.array_equal(np.diff(offsets.flatten()), lengths)
    assert lengths.sum() == 23  # half of the rows
    assert (ragged == "even") == (lengths.max() - lengths.min() <= 1)


def test_attention_over_pages_is_routed_as_over_a_full_cache() -> None:
    case = parse_case("sdpa b=2 h=2 q=1 kv=40 d=16 page=16 lengths=yes")
    assert isinstance(case, AttentionCase)
    named = _named(case.graph(), case.routing(0))
    assert named["lengths"].flatten().tolist() == [40, 40]
    for table in (named["kpage_table"], named["vpage_table"]):
        assert len(set(table.flatten())) == table.size == 2 * 3


def _named(graph: OperationGraph, values: Mapping[int, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {tensor.name: values[tensor.uid] for tensor in graph.inputs if tensor.uid in values}
