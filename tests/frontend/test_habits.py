"""Habits of programs written for cudnn-frontend, over every method: what its bindings convert is converted, outputs
have its names and lie as their inputs do."""

from __future__ import annotations

import gc
import logging
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import lowdnn.frontend as cudnn
from lowdnn.frontend.python_graph import pygraph
from lowdnn.ops.tensor import has_overlap
from lowdnn.status import AttributeTypeError, BadParamError, LowdnnError
from tests.support import calls
from tests.support.errors import raises

#: Names of outputs behind ``n``, in the order in which the methods return them.
SUFFIXES = {
    "conv_dgrad": ("::DX",),
    "conv_wgrad": ("::DW",),
    "matmul": ("::C",),
    "moe_grouped_matmul": ("::Output",),
    "moe_grouped_matmul_bwd": ("::DWeight",),
    "genstats": ("_sum_output", "_sq_sum_output"),
    **dict.fromkeys(("layernorm", "adalayernorm", "instancenorm", "groupnorm"), ("::Y", "::MEAN", "::INV_VARIANCE")),
    "rmsnorm": ("::Y", "::INV_VARIANCE"),
    "batchnorm": ("::Y", "::MEAN", "::INV_VARIANCE", "::NEXT_RUNNING_MEAN", "::NEXT_RUNNING_VAR"),
    "bn_finalize": (
        "::EQ_SCALE",
        "::EQ_BIAS",
        "::MEAN",
        "::INV_VARIANCE",
        "::NEXT_RUNNING_MEAN",
        "::NEXT_RUNNING_VAR",
    ),
    **dict.fromkeys(
        (f"{norm}_backward" for norm in ("layernorm", "adalayernorm", "instancenorm", "groupnorm", "batchnorm")),
        ("::DX", "::DSCALE", "::DBIAS"),
    ),
    "rmsnorm_backward": ("::DX", "::Dscale", "::Dbias"),
    **dict.fromkeys(
        ("conv_fprop", "reduction", "batchnorm_inference", "softmax", "reshape", "transpose", "slice", "concatenate"),
        ("::Y",),
    ),
    **dict.fromkeys(("rng", "resample", "resample_to", "block_scale_dequantize"), ("::Y",)),
    **dict.fromkeys(("resample_backward", "resample_to_backward", "rope_backward"), ("::DX",)),
    "causal_conv1d": ("::Y",),
    "causal_conv1d_backward": ("::DX", "::DWEIGHT"),
    "fft_causal_conv1d": ("::Y",),
    "fft_causal_conv1d_backward": ("::DX", "::DWEIGHT"),
    "b2b_causal_conv1d": ("::Y", "::Y_GATED"),
    "b2b_causal_conv1d_backward": ("::DX", "::DWEIGHTS_PROJ", "::DWEIGHTS_MIXER", "::DSKIP_BIAS"),
    "causal_conv1d_update": ("::Y", "::FINAL_STATES"),
    "softmax_backward": ("::3::OUT_0",),
    "rope": ("::OUTPUT",),
    "block_scale_quantize": ("::Y", "::scale"),
    "sdpa": ("::O", "::Stats"),
    "sdpa_fp8": ("::O", "::Stats", "::Amax_S", "::Amax_O"),
    "sdpa_backward": ("::dQ", "::dK", "::dV"),
    "sdpa_fp8_backward": ("::dQ", "::dK", "::dV", "::Amax_dQ", "::Amax_dK", "::Amax_dV", "::Amax_dP"),
}

#: Values that parameters must refuse or take without a crash.
HOSTILE: dict[str, Any] = {
    "None": None,
    "text": "x",
    "complex": 1j,
    "object": object(),
    "list": [1],
    "empty": [],
    "nested": [[1]],
    "texts": ["a"],
    "dict": {},
    "array": np.ones(3),
    "nan": float("nan"),
    "huge": 2**70,
    "large": 1e300,
    "negative": -1,
    "zero": 0,
    "fraction": 1.5,
    "matrix": lambda graph: graph.tensor((5, 7)),
    "vector": lambda graph: graph.tensor((4,)),
    "scalar": lambda graph: graph.tensor_scalar(1.0),
    "nothing": lambda graph: graph.tensor((2, 0, 4)),
    "unfinished": lambda graph: cudnn.Tensor(),
}


def outcome(method: str, **changed: Any) -> object:
    """The graph's key, or the error."""
    graph = calls.new_graph()
    try:
        calls.finished(graph, method, calls.call(graph, method, **changed))
        return graph.key()
    except LowdnnError as error:
        return str(error)


def test_every_method_has_a_call_that_is_valid() -> None:
    for method in calls.CALLS:
        assert isinstance(outcome(method), int), method


@pytest.mark.parametrize(("method", "name"), calls.parameters_of_type("bool", "bool | None"))
def test_booleans_are_what_has_a_truth_value(method: str, name: str) -> None:
    for wanted, values in {False: (0, np.False_, 0.0), True: (1, np.True_, np.array(1))}.items():
        expected = outcome(method, **{name: wanted})
        for value in values:
            assert outcome(method, **{name: value}) == expected, value
    if calls.parameters(method)[name].annotation == "bool":
        assert outcome(method, **{name: None}) == outcome(method, **{name: False})
    assert "expected True or False, got 'no'" in str(outcome(method, **{name: "no"}))


@pytest.mark.parametrize(
    ("method", "name"),
    calls.parameters_of_type("float", "float | None", "Operand", "Operand | None", "Tensor | float | None"),
)
def test_floats_are_what_has_a_float_or_an_index(method: str, name: str) -> None:
    if name == "accum_count":  # an integer
        return
    expected = {kind: outcome(method, **{name: kind(1)}) for kind in (int, float)}
    if calls.parameters(method)[name].annotation != "Operand":  # an Operand may have an integer type
        assert expected[int] == expected[float]
    for value in (True, np.int64(1), np.array(1)):
        assert outcome(method, **{name: value}) == expected[int], repr(value)
    for value in (np.float32(1), np.float64(1), np.array(1.0), Fraction(1)):
        assert outcome(method, **{name: value}) == expected[float], repr(value)
    for value in ("1", 1j, np.complex64(1), [1.0], np.ones(2)):
        assert "BAD_PARAM" in str(outcome(method, **{name: value}))


@pytest.mark.parametrize(("method", "name"), calls.parameters_of_type("int", "int | None"))
def test_integers_are_what_has_an_index(method: str, name: str) -> None:
    expected = outcome(method, **{name: 1})
    for value in (True, np.int64(1), np.uint8(1), np.array(1)):
        assert outcome(method, **{name: value}) == expected, repr(value)
    for refused in (1.0, np.float32(1), "1", np.ones(2, int)):
        assert "expected an integer" in str(outcome(method, **{name: refused}))


@pytest.mark.parametrize(("method", "name"), calls.parameters_of_type("Sequence[int]", "Sequence[int] | None"))
def test_sequences_are_what_can_be_run_through(method: str, name: str) -> None:
    valid = calls.CALLS[method](calls.new_graph()).get(name, [1, 1])
    expected = outcome(method, **{name: valid})
    for value in (tuple(valid), np.array(valid), np.array(valid, np.int32), iter(valid), [np.int64(v) for v in valid]):
        assert outcome(method, **{name: value}) == expected, repr(value)


@pytest.mark.parametrize("method", calls.CALLS)
def test_nothing_that_a_caller_gives_ends_in_a_python_error(method: str) -> None:
    for name in calls.parameters(method):
        for kind, value in HOSTILE.items():
            graph = calls.new_graph()
            try:
                given = value(graph) if callable(value) else value
                calls.finished(graph, method, calls.call(graph, method, **{name: given}))
                graph.validate()
            except LowdnnError:
                pass
            except Exception as error:
                raise AssertionError(f"{method}({name}={kind})") from error


@pytest.mark.parametrize("method", calls.LISTED)
def test_outputs_have_cudnn_frontends_names(method: str) -> None:
    outputs = calls.outputs_of(calls.call(calls.new_graph(), method, name="n"))
    assert tuple(tensor.get_name() for tensor in outputs) == tuple(
        f"n{suffix}" for suffix in SUFFIXES.get(method, ("::OUT_0",))
    )


@pytest.mark.parametrize("method", calls.CALLS)
def test_outputs_without_a_name_have_one_of_their_own(method: str) -> None:
    graph = calls.new_graph()
    outputs = [tensor for _ in range(2) for tensor in calls.outputs_of(calls.call(graph, method))]
    assert len({tensor.get_name() for tensor in outputs}) == len(outputs)


@pytest.mark.parametrize("method", [method for method in calls.CALLS if method != "reshape"])
def test_every_output_has_a_place_for_each_element(method: str) -> None:
    """The inputs are expanded, have gaps and lie in any order; views refuse some of that."""
    draw = np.random.default_rng(7)
    for _ in range(12):
        graph = calls.new_graph()
        arguments = calls.CALLS[method](graph)
        for value in arguments.values():
            if isinstance(value, cudnn.Tensor) and len(value.get_dim()) > 1:
                value.set_stride(random_strides(draw, value.get_dim()))
        outputs = calls.finished(graph, method, getattr(graph, method)(**arguments))
        graph.validate()
        for output in outputs:
            assert not has_overlap(tuple(output.get_dim()), tuple(output.get_stride())), output


def random_strides(draw: np.random.Generator, dims: list[int]) -> list[int]:
    """Packed strides in any order, some of them 0, some with gaps."""
    strides, step = [0] * len(dims), 1
    for axis in draw.permutation(len(dims)):
        strides[axis] = 0 if draw.random() < 0.3 else step
        step *= max(1, dims[axis]) + int(draw.integers(0, 2))
    return strides


@pytest.mark.parametrize(
    ("strides", "wanted"),
    [
        ((40, 0, 8, 1), [120, 40, 8, 1]),
        ((0, 40, 8, 1), [120, 40, 8, 1]),
        ((120, 0, 24, 3), [120, 40, 8, 1]),
        ((0, 1, 24, 3), [120, 1, 24, 3]),
        ((240, 80, 16, 2), [240, 80, 16, 2]),
        ((8, 8, 8, 1), [120, 40, 8, 1]),
        ((0, 0, 0, 0), [120, 40, 8, 1]),
    ],
)
def test_an_output_behind_an_expanded_input_is_packed(strides: tuple[int, ...], wanted: list[int]) -> None:
    graph = calls.new_graph()
    y = graph.relu(graph.tensor((2, 3, 5, 8), strides)).set_output(True)
    graph.validate()
    assert y.get_stride() == wanted


def test_a_graph_without_a_handle_makes_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOWDNN_DEVICE", "emulated")
    values = np.array([-1, 2, -3, 4], np.float32)

    def run(graph: pygraph, keys: tuple[Any, Any]) -> list[float]:
        with cudnn.from_numpy(values, graph.handle) as x, cudnn.from_numpy(values, graph.handle) as y:
            graph.execute({keys[0]: x, keys[1]: y})
            return list(y.numpy())

    graph = pygraph("own", *[cudnn.data_type.FLOAT] * 3)
    x = graph.tensor((4,), name="x")
    y = graph.relu(x).set_output(True).set_name("y")
    with caplog.at_level(logging.INFO, "lowdnn.frontend"):
        graph.build()
    assert "handle_made graph=own device=sm_90a" in caplog.text
    assert run(graph, (x, y)) == [0, 2, 0, 4]
    loaded = pygraph()
    loaded.deserialize(graph.serialize())
    assert run(loaded, ("x", "y")) == [0, 2, 0, 4]
    handles = (graph.handle, loaded.handle)
    assert handles[0] is not handles[1]
    del graph, loaded
    gc.collect()
    assert [handle.is_open for handle in handles] == [False, False]


def test_a_graph_leaves_the_handle_that_it_was_given_open() -> None:
    with cudnn.create_handle("emulated") as handle:
        graph = pygraph(handle=handle)
        assert graph.handle is handle
        del graph
        gc.collect()
        assert handle.is_open


def test_numbers_stand_for_epsilon_and_momentum() -> None:
    with cudnn.create_handle("emulated") as handle:
        graph = pygraph("norm", *[cudnn.data_type.FLOAT] * 3, handle=handle)
        x, scale = graph.tensor((2, 4)), graph.tensor((1, 4))
        y, inverse = graph.rmsnorm(calls.TRAINING, x, scale, epsilon=np.float32(0.5))
        assert inverse is not None
        y.set_output(True), inverse.set_output(True)
        graph.build()
        row = np.array([[1, 1, 1, 1], [2, 2, 2, 2]], np.float32)
        arrays = {x: row, scale: row[:1], y: np.zeros_like(row), inverse: np.zeros((2, 1), np.float32)}
        tensors = {tensor: cudnn.from_numpy(array, handle) for tensor, array in arrays.items()}
        graph.execute(tensors)
        np.testing.assert_allclose(tensors[inverse].numpy()[:, 0], [1.5**-0.5, 4.5**-0.5], rtol=1e-6)
    with raises(AttributeTypeError, "layernorm.epsilon", expected="a tensor of a graph, a number", got="'small'"):
        calls.call(calls.new_graph(), "layernorm", epsilon="small")


def test_a_sum_of_a_vector() -> None:
    with cudnn.create_handle("emulated") as handle:
        graph = pygraph("sum", *[cudnn.data_type.FLOAT] * 3, handle=handle)
        x = graph.tensor((8,))
        y = graph.reduction(x, cudnn.reduction_mode.ADD).set_dim([1]).set_output(True)
        graph.build()
        with (
            cudnn.from_numpy(np.arange(8, dtype=np.float32), handle) as values,
            cudnn.from_numpy(np.zeros(1, np.float32), handle) as total,
        ):
            graph.execute({x: values, y: total})
            assert total.numpy().tolist() == [28]


def test_a_slice_has_its_inputs_type() -> None:
    graph = pygraph("slice", compute_data_type=cudnn.data_type.FLOAT, sm_version=90)
    y = graph.slice(graph.tensor((4, 4), data_type=cudnn.data_type.INT8), [slice(0, 2)]).set_output(True)
    graph.validate()
    assert y.get_data_type() is cudnn.data_type.INT8


@pytest.mark.parametrize(
    "change",
    [
        lambda graph, x, y: y.set_uid(77),
        lambda graph, x, y: x.set_uid(78),
        lambda graph, x, y: y.set_name("other"),
        lambda graph, x, y: y.set_data_type(cudnn.data_type.HALF),
        lambda graph, x, y: x.set_stride((1, 2)),
        lambda graph, x, y: graph.exp(y.set_output(False)).set_output(True).set_uid(77),
    ],
)
def test_what_changes_after_validate_is_built(change: Any) -> None:
    graph = calls.new_graph()
    x = graph.tensor((2, 4))
    y = graph.relu(x).set_output(True)
    graph.validate()
    change(graph, x, y)
    graph.build_operation_graph()
    graph.create_execution_plans()
    graph.check_support()
    built = graph._planned().graph
    assert {tensor.get_uid() for tensor in graph._used()} == set(built.tensors)
    assert built.tensors[y.get_uid()].name == y.get_name()
    assert built.tensors[x.get_uid()].strides == tuple(x.get_stride())


def test_offsets_are_not_ragged_themselves() -> None:
    graph = calls.new_graph()
    x, other = graph.tensor((2, 3), name="x"), graph.tensor((3,), name="offsets")
    graph.relu(x).set_output(True)
    for offset in (x, other.set_ragged_offset(x)):
        x.set_ragged_offset(offset)
        with raises(BadParamError, "tensor 'x'.ragged_offset", expected="a tensor without ragged offsets"):
            graph.validate()


@pytest.mark.parametrize(
    ("method", "arguments", "where"),
    [
        ("reduction", {}, "tensor 'n::Y'.dim"),
        ("relu", {"lower_clip": 2, "upper_clip": 1}, "relu.lower_clip"),
        ("relu", {"upper_clip": -1}, "relu.lower_clip"),
        ("relu_backward", {"lower_clip": float("nan")}, "relu_backward.lower_clip"),
    ],
)
def test_what_means_nothing_is_refused(method: str, arguments: dict[str, Any], where: str) -> None:
    graph = calls.new_graph()
    calls.outputs_of(calls.call(graph, method, name="n", **arguments))[0].set_output(True)
    with raises(BadParamError, where):
        graph.validate()


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 6, 8, 12, 20])
def test_slopes_of_alibi_are_those_of_the_formula(heads: int) -> None:
    with cudnn.create_handle("emulated") as handle:
        graph = pygraph("alibi", *[cudnn.data_type.FLOAT] * 3, handle=handle)
        q, k = graph.tensor((1, heads, 1, 1)), graph.tensor((1, heads, 2, 1))
        _, stats = graph.sdpa(q, k, k, use_alibi_mask=True, generate_stats=True)
        assert stats is not None
        stats.set_output(True)
        graph.build()
        zeros = {tensor: np.zeros(tensor.get_dim(), np.float32) for tensor in (q, k, stats)}
        tensors = {tensor: cudnn.from_numpy(array, handle) for tensor, array in zeros.items()}
        graph.execute(tensors, cudnn.from_numpy(np.zeros(max(1, graph.get_workspace_size()), np.uint8), handle))
        found = np.log(np.exp(tensors[stats].numpy().ravel()) - 1)
    power = 2 ** int(np.log2(heads))
    first = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    rest = [2 ** (-4 * (2 * (head - power) + 1) / power) for head in range(power, heads)]
    np.testing.assert_allclose(found, [*first, *rest], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", calls.CALLS)
def test_scalars_and_small_ranks_are_planned_or_refused(method: str) -> None:
    """Each tensor in turn is a by-value tensor of any rank, a vector, or one element."""
    kinds = {
        "constant": lambda graph: graph.tensor_scalar(1.0, cudnn.scalar_type.COMPILE_TIME_CONST),
        "scalar": lambda graph: graph.tensor_scalar(1.0),
        "scalar of rank 4": lambda graph: graph.tensor((1, 1, 1, 1), is_pass_by_value=True),
        "vector": lambda graph: graph.tensor((4,)),
        "matrix": lambda graph: graph.tensor((3, 4)),
        "element": lambda graph: graph.tensor((1,)),
    }
    for name, item in calls.parameters(method).items():
        for kind, make in kinds.items() if "Tensor" in item.annotation or "Operand" in item.annotation else ():
            graph = calls.new_graph()
            try:
                calls.finished(graph, method, calls.call(graph, method, **{name: make(graph)}))
                graph.build_operation_graph()
                graph.create_execution_plans()
                assert graph.get_workspace_size() >= 0
            except LowdnnError:
                pass
            except Exception as error:
                raise AssertionError(f"{method}({name}={kind})") from error


@pytest.mark.parametrize(
    ("method", "names"), [("batchnorm", ("epsilon", "momentum")), ("layernorm", ("epsilon",)), ("add", ("b",))]
)
def test_by_value_tensors_may_have_any_rank(method: str, names: tuple[str, ...]) -> None:
    for dims in ((1,), (1, 1), (1, 1, 1), (1, 1, 1, 1)):
        graph = calls.new_graph()
        given = {name: graph.tensor(dims, is_pass_by_value=True) for name in names}
        calls.finished(graph, method, calls.call(graph, method, **given))
        graph.build_operation_graph()
        graph.create_execution_plans()
        graph.check_support()


def test_a_by_value_sink_is_read() -> None:
    with cudnn.create_handle("emulated") as handle:
        graph = pygraph("sink", *[cudnn.data_type.FLOAT] * 3, handle=handle)
        q = graph.tensor((1, 2, 4, 8))
        sink = graph.tensor((1, 1, 1, 1), is_pass_by_value=True)
        o, _ = graph.sdpa(q, q, q, generate_stats=False, sink_token=sink)
        o.set_output(True)
        graph.build()
        ones = np.ones((1, 2, 4, 8), np.float32)
        tensors = {tensor: cudnn.from_numpy(ones, handle) for tensor in (q, o)}
        workspace = cudnn.from_numpy(np.zeros(max(1, graph.get_workspace_size()), np.uint8), handle)
        graph.execute({**tensors, sink: 8.0}, workspace)
        np.testing.assert_allclose(tensors[o].numpy(), 0.8 * ones, rtol=1e-6)  # scores are 8: four keys and the sink


def test_lengths_beside_a_score_modifier_are_its_own() -> None:
    """A score modifier may read lengths. Without a padding mask they mask nothing; pages need the keys' lengths."""
    graph = calls.new_graph()
    lengths = {name: graph.tensor((2, 1, 1, 1), data_type=calls.INT32) for name in ("seq_len_q", "seq_len_kv")}
    pages = {name: graph.tensor((8, 4, 4, 16), data_type=calls.HALF) for name in ("k", "v")}
    tables = {f"paged_attention_{name}_table": graph.tensor((2, 1, 4, 1), data_type=calls.INT32) for name in pages}

    def masked(own: pygraph, scores: cudnn.Tensor) -> cudnn.Tensor:
        column = own.gen_index(scores, 3).set_data_type(calls.INT32)
        seen = own.cmp_lt(column, lengths["seq_len_kv"]).set_data_type(cudnn.data_type.BOOLEAN)
        return own.binary_select(scores, -1e9, seen)

    o, _ = calls.call(graph, "sdpa", generate_stats=False, score_mod=masked, **lengths, **pages, **tables)
    o.set_output(True)
    graph.build_operation_graph()
    graph.create_execution_plans()
    graph.check_support()
    with raises(BadParamError, "sdpa.use_padding_mask", expected="True with seq_len_q and seq_len_kv", got="False"):
        calls.call(calls.new_graph(), "sdpa", **lengths)
    keys_alone = {"seq_len_kv": lengths["seq_len_kv"], "use_padding_mask": True}
    with raises(BadParamError, "sdpa.use_padding_mask", expected="True with seq_len_q", got="True with seq_len_kv"):
        calls.call(calls.new_graph(), "sdpa", **keys_alone)
    with raises(BadParamError, "sdpa.paged_attention_k_table", expected="None without seq_len_kv"):
        calls.call(calls.new_graph(), "sdpa", **pages, **tables)
