"""Taking operations over and giving them back: often, nested, from several threads, over other overrides."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lowdnn.status import BadParamError, NotInitializedError, NotSupportedError
from tests.torch.support import Face

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")


def operands(face: Face) -> tuple[Any, Any]:
    return face.integers(1, 3, 6, 6, dtype=torch.float32), face.integers(4, 3, 3, 3, dtype=torch.float32)


def convolved(face: Face) -> Any:
    x, w = operands(face)
    y = torch.conv2d(x, w)
    assert torch.equal(y, torch.conv2d(x.double(), w.double()).float())
    return y


def objects() -> int:
    """The live objects, but for the allocations that the emulated device remembers to find uses after a free."""
    gc.collect()
    return sum(not str(type(found).__module__).startswith("lowdnn.driver.emulated") for found in gc.get_objects())


def taken(face: Face) -> int:
    return face.counts().get(("convolution", ""), 0)


def dispatched(face: Face, names: tuple[str, ...]) -> list[str]:
    """The dispatcher's own description of what computes each operation."""
    key = "CPU" if face.device == "emulated" else "CUDA"
    return [repr(torch.library.get_kernel(f"aten::{name}", key)) for name in names]


def test_nothing_is_left_of_a_thousand_times(face: Face) -> None:
    from lowdnn.torch.catalog import OVERLOADS

    key = "CPU" if face.device == "emulated" else "CUDA"
    names = tuple(item.name for item in OVERLOADS if key in item.keys and item.name == "convolution")
    before, impls = dispatched(face, names), set(torch.library._impls)
    for _ in range(5):
        with face.enable():
            convolved(face)
    # Some removed overrides are kept, for threads that may be running them.
    for _ in range(100):
        with face.enable(["convolution"]):
            pass
    count = objects()
    for _ in range(1000):
        with face.enable(["convolution"]):
            pass
    assert objects() <= count + 100
    assert dispatched(face, names) == before
    assert set(torch.library._impls) == impls
    calls = taken(face)
    convolved(face)
    assert taken(face) == calls


def test_nested_calls_are_undone_one_by_one(face: Face) -> None:
    import lowdnn.torch

    calls = taken(face)
    outer, inner = face.enable(), face.enable(["convolution"])
    outer.close()
    outer.close()
    convolved(face)
    assert taken(face) > calls
    assert lowdnn.torch.is_enabled()
    lowdnn.torch.disable()
    inner.close()
    assert not lowdnn.torch.is_enabled()
    with pytest.raises(NotInitializedError, match=r"torch\.Enabled: expected an enable that is in force"), inner:
        pass
    with pytest.raises(NotInitializedError, match=r"torch\.disable: expected operations taken over, got none"):
        lowdnn.torch.disable()


def test_an_exception_inside_gives_the_operations_back(face: Face) -> None:
    import lowdnn.torch

    with pytest.raises(ZeroDivisionError), face.enable():
        _ = 1 / 0
    assert not lowdnn.torch.is_enabled()
    with face.enable():
        with pytest.raises(RuntimeError):
            torch.conv2d(*operands(face)[::-1])
        convolved(face)


def test_threads_share_plans_and_switches(face: Face) -> None:
    def work(number: int) -> None:
        for _ in range(10):
            with face.enable(["convolution"]):
                convolved(face)

    with face.enable(), ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    import lowdnn.torch

    assert not lowdnn.torch.is_enabled()


def test_operations_are_given_back_while_other_threads_call_them() -> None:
    """The dispatcher keeps no override that a thread is about to run: the program ended with a segmentation fault."""
    program = """
import threading, time, torch, lowdnn.torch
x, w, ended = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3), threading.Event()
def call():
    while not ended.is_set():
        torch.conv2d(x, w)
threads = [threading.Thread(target=call) for _ in range(3)]
[thread.start() for thread in threads]
for _ in range(1000):
    with lowdnn.torch.enable("emulated", "convolution"):
        time.sleep(0.003)
ended.set()
[thread.join() for thread in threads]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_librarys_override_is_the_native_kernel(face: Face) -> None:
    key = "CPU" if face.device == "emulated" else "CUDA"
    other, seen = torch.library.Library("aten", "IMPL"), []
    native = torch.library.get_kernel("aten::convolution", key)

    def theirs(keys: Any, *args: Any) -> Any:
        seen.append(args)
        return native.call_boxed(keys, *args)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.impl("convolution", theirs, key, with_keyset=True, allow_override=True)
    try:
        with face.enable(["convolution"]):
            x, w = operands(face)
            torch.conv2d(x, w)
            assert not seen
            torch.conv2d(x[:0], w)
            assert len(seen) == 1
        torch.conv2d(*operands(face))
        assert len(seen) == 2
    finally:
        other._destroy()


def test_another_librarys_override_may_go_first(face: Face) -> None:
    """The kernel that it leaves behind is the one that declined calls run on."""
    key = "CPU" if face.device == "emulated" else "CUDA"
    other = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.impl("convolution", lambda keys, *args: args[0], key, with_keyset=True, allow_override=True)
    with face.enable(["convolution"]):
        other._destroy()
        x, w = operands(face)
        assert torch.conv2d(x[:0], w).shape == (0, 4, 4, 4)
    assert torch.conv2d(x, w).shape == (1, 4, 4, 4)


def test_a_program_says_nothing_and_lowdnn_does_not_need_torch(face: Face) -> None:
    program = f"""
import sys
import lowdnn
assert "torch" not in sys.modules
import torch, lowdnn.torch
with lowdnn.torch.enable({face.device!r}):
    pass
"""
    done = subprocess.run([sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if "lowdnn" in line or "verrid" in line]
    assert (done.stdout, lines) == ("", [])


def test_names_are_checked(face: Face) -> None:
    import lowdnn.torch

    with pytest.raises(BadParamError, match=r"torch\.enable\.operations: expected one of .*, got 'conv'"):
        face.enable(["conv"])
    for none in ([], 5, [None], ""):
        with pytest.raises(BadParamError, match=r"torch\.enable\.operations: expected "):
            lowdnn.torch.enable(face.device, none)  # type: ignore[arg-type]
    for device in ("cpu", 3, []):
        with pytest.raises(BadParamError, match=r"torch\.enable\.device: expected cuda or emulated, got "):
            lowdnn.torch.enable(device)  # type: ignore[arg-type]
    if not torch.cuda.is_available():
        with pytest.raises(NotSupportedError, match="a GPU that torch sees"):
            lowdnn.torch.enable()
    assert not lowdnn.torch.is_enabled()


def test_explain_shows_paths_and_reasons(face: Face) -> None:
    import lowdnn.torch

    with face.enable(["convolution"]):
        x, w = operands(face)
        torch.conv2d(x, w)
        torch.conv2d(x[:0], w)
    shown = lowdnn.torch.explain().splitlines()
    assert shown[0].split() == ["operation", "calls", "kernel", "reason"]
    assert any(line.startswith("convolution ") and line.endswith("native  a tensor without elements") for line in shown)


def test_profiles_name_the_case(face: Face) -> None:
    x, w = operands(face)
    with face.enable(["convolution"]), torch.profiler.profile(acc_events=True) as profile:
        torch.conv2d(x, w)
    names = [event.key for event in profile.key_averages()]
    assert "lowdnn::convolution conv n=1 c=3 hw=6x6 k=4 rs=3x3 layout=nchw" in names


def test_compiled_programs_take_the_same_path(face: Face) -> None:
    compiled = torch.compile(torch.conv2d, backend="aot_eager", fullgraph=True)
    x, w = operands(face)
    calls = taken(face)
    with face.enable(["convolution"]):
        y = compiled(x, w)
    assert taken(face) == calls + 1
    assert torch.equal(y, torch.conv2d(x, w))


def test_functions_that_are_not_compiled_do_not_trace_lowdnn(face: Face) -> None:
    import torch._dynamo.testing

    @torch._dynamo.disable(recursive=False)
    def plain(x: Any, w: Any) -> Any:
        return torch.conv1d(x, w)

    x, w = face.integers(1, 3, 7, dtype=torch.float32), face.integers(4, 3, 3, dtype=torch.float32)

    def counted() -> tuple[int, int]:
        torch._dynamo.reset()
        frames = torch._dynamo.testing.CompileCounter()
        torch.compile(lambda x, w: plain(x, w), backend=frames)(x, w)
        return frames.frame_count, frames.op_count

    native = counted()
    with face.enable(["convolution"]):
        assert counted() == native


def test_traces_record_pytorchs_operations(face: Face) -> None:
    x, w = operands(face)
    with face.enable(["convolution"]):
        traced = torch.jit.trace(torch.conv2d, (x, w))
        assert "aten::_convolution" in str(traced.graph)
        assert torch.equal(traced(2 * x, w), torch.conv2d(2 * x, w))
    assert face.counts()["convolution", "recorded by torch.jit.trace"]


def test_children_of_fork_plan_anew() -> None:
    """Known calls and new ones, though another thread of the parent was planning when it forked."""
    program = """
import os, signal, threading, torch, lowdnn.torch
from lowdnn.torch.registry import REGISTRY
held, forked = threading.Event(), threading.Event()
def plan():
    with REGISTRY._lock, REGISTRY._memories["emulated"].planning:
        held.set()
        forked.wait()
x, w = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3)
with lowdnn.torch.enable("emulated", "convolution"):
    torch.conv2d(x, w)
    threading.Thread(target=plan).start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        found = [torch.conv2d(x, w).sum().item(), torch.conv2d(x[..., :3], w).sum().item()]
        with lowdnn.torch.enable("emulated"):
            print(found, [(path.calls, path.reason) for path in lowdnn.torch.counts()], flush=True)
        lowdnn.torch.reset()
        os._exit(0)
    forked.set()
    assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "[36.0, 18.0] [(2, '')]\n"


def test_benchmark_mode_tunes(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    from lowdnn.torch import planning

    tuned: list[Any] = []
    tune = planning.tune_where_new

    def counted(handle: Any, graph: Any, options: Any) -> Any:
        tuned.append(graph)
        return tune(handle, graph, options)

    monkeypatch.setattr(planning, "tune_where_new", counted)
    x, w = face.integers(2, 4, 9, 9, dtype=torch.float32), face.integers(4, 4, 3, 3, dtype=torch.float32)
    for benchmark in (False, True, True):
        flags = torch.backends.cudnn.flags(enabled=True, benchmark=benchmark, allow_tf32=False)
        with face.enable(["convolution"]), flags:
            y = torch.conv2d(x, w)
    assert len(tuned) == 1
    assert torch.equal(y, torch.conv2d(x.double(), w.double()).float())


def test_a_thousand_steps_take_no_more_memory(face: Face) -> None:
    x, w = operands(face)
    with face.enable(["convolution"]):
        torch.conv2d(x, w)
        count = objects()
        for _ in range(1000 if face.device == "cuda" else 100):
            torch.conv2d(x, w)
        assert objects() <= count + 50
