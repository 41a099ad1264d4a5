"""``causal_conv1d`` and ``causal_conv1d_backward``: causal convolution along sequences, and its gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.driver import open_driver
from lowdnn.engines.base import Engine
from lowdnn.engines.conv.sequence.causal_conv1d import CausalConv1dEngine
from lowdnn.engines.conv.sequence.causal_conv1d_backward import CausalConv1dBackwardEngine
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.causal_conv1d_forward import CausalConv1dForward
from lowdnn.ops.memory import to_memory
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.pairs import paired
from tests.support.running import POLICIES, Arrays, check_case, check_exact, check_outputs, run_plan
from tests.support.runtime import download, upload

FORWARD, BACKWARD = CausalConv1dEngine(), CausalConv1dBackwardEngine()


def engine_of(line: str) -> Engine:
    return BACKWARD if "dir=bwd" in line else FORWARD


def plan_of(line: str) -> Plan:
    return engine_of(line).plan(parse_case(line).graph(), SM_90A, {})


@paired(
    ("direction", ("fwd", "bwd")),
    ("layout", ("row", "nhwc", "padded", "transposed")),
    ("dtype", ("fp32", "fp16", "bf16", "fp64")),
    ("taps", (1, 2, 4, 8, 9, 20)),
    ("length", (1, 3, 8, 61, 300)),
    ("sequences", ("", "lengths", "sizes")),
    ("act", ("none", "silu")),
)
def test_pairs(
    device: Runtime, direction: str, layout: str, dtype: str, taps: int, length: int, sequences: str, act: str
) -> None:
    """Odd numbers of channels, so that the last threads of a row have none; sequences without elements."""
    batch = 1 if sequences == "sizes" else 2
    parts = {"lengths": f"lengths={length // 2}x0", "sizes": f"sizes={length // 2}x0x{length // 3}"}
    words = f"b={batch} c=6 l={length} k={taps} act={act} {parts.get(sequences, '')} layout={layout} dtype={dtype}"
    states = "" if taps == 1 else "states=initial" if direction == "bwd" else "states=both"
    line = f"causal_conv1d dir={direction} {words} {states}"
    check_case(device, engine_of(line), line)


@paired(("policy", POLICIES), ("direction", ("fwd", "bwd")), ("layout", ("row", "nhwc")), ("taps", (4, 11)))
def test_policies(policy: str, direction: str, layout: str, taps: int) -> None:
    line = f"causal_conv1d b=2 c=5 l=90 k={taps} dir={direction} layout={layout} dtype=fp32"
    runtime = Runtime(open_driver("emulated", policy=policy))
    try:
        case = parse_case(line)
        choices = {KnobType.MULTIPLY: 2} if direction == "bwd" else {}
        check_exact(runtime, engine_of(line), case.graph(), length=case.length, choices=choices)
    finally:
        runtime.close()


@pytest.mark.parametrize("layout", ["row", "nhwc"])
@pytest.mark.parametrize("run", [1, 2, 8])
def test_runs(device: Runtime, layout: str, run: int) -> None:
    """The elements that follow a run, or end inside of it, count in its last ones."""
    line = f"causal_conv1d b=2 c=4 l=600 k=5 dir=bwd layout={layout} dtype=fp32"
    check_exact(device, BACKWARD, parse_case(line).graph(), length=1200, choices={KnobType.MULTIPLY: run})


def test_tiles_of_a_thread(device: Runtime) -> None:
    line = "causal_conv1d b=2 c=3 l=600 k=4 dtype=bf16"
    for tiles in (1, 2):
        check_exact(device, FORWARD, parse_case(line).graph(), length=5, choices={KnobType.MULTIPLY: tiles})


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("layout", ["row", "nhwc"])
@pytest.mark.parametrize(
    "words", ["b=2 l=40 k=4 lengths=21x40", "b=1 l=40 k=4 sizes=21x0x9", "b=2 l=40 k=12 lengths=21x40"]
)
def test_what_is_not_finite_stays_in_its_sequence(device: Runtime, direction: str, layout: str, words: str) -> None:
    """NaN beyond the sequences is not read, and NaN or infinity inside of one reaches nothing outside."""
    line = f"causal_conv1d c=4 {words} dir={direction} layout={layout} dtype=fp32"
    case = parse_case(line)
    graph, inputs = case.graph(), case.inputs(3, exact=False)
    for tensor in graph.inputs:
        if tensor.name == "x":
            inputs[tensor.uid][0, 1, 20] = np.nan
        if tensor.name in ("x", "dy"):
            inputs[tensor.uid][0, :, 30:] = np.nan
            inputs[tensor.uid][0, 2, 5] = np.inf
        if tensor.name == "weight":
            inputs[tensor.uid][3, 0] = np.inf
    check_outputs(device, engine_of(line).plan(graph, SM_90A, {}), graph, inputs, case.length, line)


@pytest.mark.parametrize("words", ["l=1 k=4", "l=2 k=8", "l=9 k=4 layout=nhwc", "l=3 k=12", "l=0 k=4"])
def test_states_may_be_the_same_memory(device: Runtime, words: str) -> None:
    """A step of decoding replaces the states that it reads."""
    case = parse_case(f"causal_conv1d b=2 c=5 {words} states=both act=silu dtype=fp32")
    graph, inputs = case.graph(), case.inputs(5, exact=False)
    check_in_place(device, FORWARD.plan(graph, SM_90A, {}), graph, inputs, str(case))


def check_in_place(device: Runtime, plan: Plan, graph: OperationGraph, inputs: Arrays, context: str) -> None:
    """Where the final states are in the initial ones' memory, they are what they are elsewhere."""
    uids = {tensor.name: tensor.uid for tensor in graph.tensors.values()}
    before, after = uids["initial_states"], uids["final_states"]
    old = {after: inputs[before]} if after in inputs else {}
    wanted = run_plan(device, plan, graph, {**inputs, **old})[after]
    given = {uid: values for uid, values in inputs.items() if uid != after}
    buffers = {uid: upload(device, to_memory(values, graph.tensors[uid])) for uid, values in given.items()}
    buffers[uids["out"]] = upload(device, np.zeros(max(1, graph.tensors[uids["out"]].element_count), np.float32))
    buffers[after] = buffers[before]
    device.load(plan).execute({item.uid: buffers[item.uid].address for item in plan.tensors}, 0)
    device.context.synchronize()
    found = download(buffers[after], np.float32).reshape(wanted.shape)
    np.testing.assert_array_equal(found, wanted, err_msg=context)


@paired(
    ("layout", ("row", "nhwc")),
    ("taps", (2, 4, 9)),
    ("length", (1, 3, 70)),
    ("sequences", ("", "lengths", "sizes")),
    ("index", ("int32", "int64")),
)
def test_slots(device: Runtime, layout: str, taps: int, length: int, sequences: str, index: str) -> None:
    """Slots in any order, of several sequences, and outside of the pool on both sides of it."""
    batch, half = 1 if sequences == "sizes" else 5, length // 2
    parts = {"lengths": f"lengths={length}x0x{half}x1x{length}", "sizes": f"sizes={half}x0x{length // 3}x1x0"}
    words = f"b={batch} c=6 l={length} k={taps} {parts.get(sequences, '')} slots=3x4x1x4x0 pool=6"
    case = parse_case(f"causal_conv1d {words} states=both act=silu layout={layout} index={index} dtype=fp32")
    graph, seed = case.graph(), fresh_seed()
    plan = FORWARD.plan(graph, SM_90A, {})
    for slots in ((3, 4, 1, 4, 0), (-1, 6, 2, 2, 2), (5, -(2**31), 2**31 - 1, 5, 0)):
        inputs = case.inputs(seed, exact=False)
        indices = next(tensor for tensor in graph.inputs if tensor.name == "state_indices")
        inputs[indices.uid] = np.array(slots, inputs[indices.uid].dtype)
        check_outputs(device, plan, graph, inputs, case.length, f"seed {seed}, {case} {slots}")


@pytest.mark.parametrize("policy", POLICIES)
def test_one_slot_of_many_sequences(policy: str) -> None:
    """More sequences than a warp has threads, few channels: the last one's states stay, in place too."""
    seed = fresh_seed()
    slots = "x".join(str(slot) for slot in np.random.default_rng(seed).integers(0, 5, 70))
    case = parse_case(f"causal_conv1d b=70 c=3 l=2 k=4 slots={slots} pool=4 states=both dtype=fp32")
    runtime, graph = Runtime(open_driver("emulated", policy=policy)), case.graph()
    try:
        plan, inputs = FORWARD.plan(graph, SM_90A, {}), case.inputs(seed, exact=True)
        check_outputs(runtime, plan, graph, inputs, case.length, f"seed {seed}")
        check_in_place(runtime, plan, graph, inputs, f"seed {seed}")
    finally:
        runtime.close()


def test_bounds_outside_of_the_batch_count_as_its_ends(device: Runtime) -> None:
    """Whatever lengths and offsets say, no other memory is read or written."""
    for words, name, values in (
        ("b=3 lengths=3x5x9", "lengths", [-7, 2**31 - 1, 20]),
        ("b=1 sizes=3x5", "offsets", [-5, 4, 2**31 - 1]),
    ):
        for direction, states in (("fwd", "both"), ("bwd", "initial")):
            line = f"causal_conv1d c=3 l=20 k=4 {words} dir={direction} states={states} dtype=fp32"
            case = parse_case(line)
            graph, inputs = case.graph(), case.inputs(7, exact=False)
            bounds = next(tensor for tensor in graph.inputs if tensor.name == name)
            inputs[bounds.uid] = np.array(values, np.int32)
            check_outputs(device, engine_of(line).plan(graph, SM_90A, {}), graph, inputs, case.length, line)


def test_lanes_follow_the_memory() -> None:
    def tiling(line: str) -> tuple[object, ...]:
        parameters = dict(plan_of(line).kernels[0].parameters)
        return tuple(parameters[name] for name in ("ALONG_CHANNELS", "LANES", "CHANNELS", "X_WIDTH", "Y_WIDTH"))

    assert tiling("causal_conv1d b=8 c=4096 l=4096 k=4 dtype=bf16") == (0, 32, 1, 8, 8)
    assert tiling("causal_conv1d b=8 c=4096 l=4096 k=4 dtype=fp32") == (0, 32, 1, 4, 4)
    assert tiling("causal_conv1d b=8 c=4096 l=4096 k=4 dtype=bf16 layout=nhwc") == (1, 32, 2, 2, 2)
    assert tiling("causal_conv1d b=8 c=4095 l=4096 k=4 dtype=bf16 layout=nhwc") == (1, 32, 1, 1, 1)
    assert tiling("causal_conv1d b=8 c=4096 l=4095 k=4 dtype=bf16") == (0, 32, 1, 1, 1)
    assert tiling("causal_conv1d b=8 c=64 l=60 k=4 dtype=bf16 out_layout=nhwc") == (0, 8, 1, 4, 0)
    assert tiling("causal_conv1d b=8 c=4096 l=1 k=4 dtype=bf16 layout=nhwc") == (1, 128, 2, 2, 2)


def test_sums_have_few_parts() -> None:
    """A thread has as many tiles as leave the device enough blocks."""
    assert dict(plan_of("causal_conv1d b=8 c=8192 l=16384 k=4 dir=bwd").choices) == {KnobType.MULTIPLY: 64}
    assert dict(plan_of("causal_conv1d b=1 c=64 l=65536 k=4 dir=bwd").choices) == {KnobType.MULTIPLY: 4}
    long = plan_of("causal_conv1d b=8 c=4096 l=4096 k=4 dir=bwd layout=nhwc")
    assert long.workspace_bytes < 2 * 8 * 4096 * 4096 / 20


def test_what_is_refused() -> None:
    builder = CaseBuilder()
    x, weight = builder.tensor((1, 4, 9), DataType.HALF), builder.tensor((4, 3), DataType.HALF)
    y = replace(builder.tensor((1, 4, 9), DataType.HALF), is_virtual=True)
    builder.add(CausalConv1dForward(x=x, weight=weight, y=y))
    builder.add(CausalConv1dForward(x=y, weight=weight, y=builder.tensor((1, 4, 9), DataType.HALF)))
    assert "expected one CausalConv1dForward" in str(FORWARD.refuse(builder.graph(), SM_90A))
    wide = parse_case(f"causal_conv1d b=1 c=1 l={2**31} k=4").graph()
    assert "expected at most 1073741824 positions" in str(FORWARD.refuse(wide, SM_90A))
