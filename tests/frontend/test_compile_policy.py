"""The compile policy of a handle: what runs in place of a plan whose kernels would have to be compiled first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.backend.at_hand import choice_at_hand
from lowdnn.cases import parse_case
from lowdnn.config import CompilePolicy, Config
from lowdnn.enums import HeurMode
from lowdnn.frontend.python_graph import pygraph
from lowdnn.heuristics.kernels_at_hand import KnownChoices
from lowdnn.heuristics.ranking import rank
from lowdnn.plan import Plan
from lowdnn.runtime.compile import KernelCompiler
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError, NotSupportedError
from tests.support.data import fresh_seed

HALF, FLOAT = cudnn.data_type.HALF, cudnn.data_type.FLOAT
K, N = 2048, 64
#: Rows whose best plan is one kernel without a workspace.
MANY = 256
#: Rows whose best plan splits the sum.
FEW = 40


class Product:
    """y = a b for a number of rows, with integers, whose sums are exact."""

    def __init__(self, handle: Handle, rows: int) -> None:
        self.handle = handle
        self.graph = pygraph("product", HALF, FLOAT, FLOAT, handle)
        a, b = self.graph.tensor([1, rows, K], name="a"), self.graph.tensor([1, K, N], name="b")
        self.graph.matmul(a, b).set_output(True).set_name("y").set_data_type(FLOAT)
        random = np.random.default_rng(fresh_seed())
        a_values, b_values = (random.integers(-3, 4, shape).astype(np.float16) for shape in ((1, rows, K), (1, K, N)))
        self.expected = a_values.astype(np.float32) @ b_values.astype(np.float32)
        self.values = {
            name: lowdnn.from_numpy(array, handle)
            for name, array in (("a", a_values), ("b", b_values), ("y", np.full_like(self.expected, np.nan)))
        }

    def build(self) -> Product:
        self.graph.build([cudnn.heur_mode.A])
        size_bytes = self.graph.get_workspace_size()
        self.workspace = lowdnn.empty([max(size_bytes, 1)], self.handle, cudnn.data_type.INT8)
        return self

    def execute(self) -> None:
        self.graph.execute(self.values, self.workspace)

    def check(self) -> None:
        np.testing.assert_array_equal(self.values["y"].numpy(), self.expected)

    def run(self) -> None:
        self.values["y"].copy_from(np.full_like(self.expected, np.nan))
        self.execute()
        self.check()


def until(is_true: Callable[[], object]) -> None:
    end_s = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end_s
        time.sleep(0.001)


@contextmanager
def opened(device: Runtime, folder: Path, policy: CompilePolicy) -> Iterator[Handle]:
    config = Config(cache_dir=folder, compile_policy=policy)
    with Handle(Runtime(device.driver, config=config)) as handle:
        yield handle


def counts(handle: Handle) -> dict[str, int]:
    names = ("compiles", "compile_waits", "plans_at_hand", "algorithm_switches")
    found = handle.runtime.counters.snapshot()
    return {name: found[name] for name in names if name in found}


def test_a_new_shape_runs_on_kernels_that_are_at_hand(device: Runtime, tmp_path: Path) -> None:
    with opened(device, tmp_path, CompilePolicy.AVOID) as handle:
        Product(handle, MANY).build().run()
        assert counts(handle) == {"compiles": 1, "compile_waits": 1}
        new = Product(handle, FEW).build()
        new.run()
        assert counts(handle) == {"compiles": 1, "compile_waits": 1, "plans_at_hand": 1}
        assert new.graph.get_predicted_slowdown() > 1
        assert f"kernels at hand, {new.graph.get_predicted_slowdown():.2f} times" in new.graph.explain()
        assert new.graph.get_workspace_size() == 0
        names = [new.graph.get_plan_name_at_index(i) for i in range(new.graph.get_execution_plan_count())]
        assert names[0] == best_plan(handle, FEW).name != names[-1]


def test_a_new_process_knows_which_kernels_are_on_disk(device: Runtime, tmp_path: Path) -> None:
    with opened(device, tmp_path, CompilePolicy.AVOID) as handle:
        Product(handle, MANY).build().run()
    with opened(device, tmp_path, CompilePolicy.AVOID) as handle:
        Product(handle, FEW).build().run()
        assert counts(handle) == {"plans_at_hand": 1}


def test_without_a_kernel_at_hand_that_a_filter_allows_the_call_waits(device: Runtime, tmp_path: Path) -> None:
    with opened(device, tmp_path, CompilePolicy.AVOID) as handle:
        Product(handle, MANY).build()
        new = Product(handle, FEW)
        new.graph.validate()
        new.graph.build_operation_graph()
        new.graph.create_execution_plans([cudnn.heur_mode.A])
        new.graph.deselect_engines(["matmul_wgmma"])
        new.graph.build_plans()
        assert counts(handle)["compile_waits"] == 2
        assert new.graph.get_predicted_slowdown() == 1


def test_a_later_execute_switches_to_the_plan_that_was_compiled_meanwhile(device: Runtime, tmp_path: Path) -> None:
    with opened(device, tmp_path, CompilePolicy.BACKGROUND) as handle:
        Product(handle, MANY).build()
        new = Product(handle, FEW).build()
        assert new.graph.get_workspace_size() >= best_plan(handle, FEW).workspace_bytes > 0
        slowdown = new.graph.get_predicted_slowdown()
        until(lambda: handle.runtime.counters.snapshot()["plans_loaded"] == 3)
        assert slowdown > 1
        assert "algorithm_switches" not in counts(handle)
        for _ in range(3):
            until_loaded(new)
            new.run()
            assert counts(handle)["algorithm_switches"] == 1
            assert new.graph.get_predicted_slowdown() == 1
        again = Product(handle, FEW).build()
        again.run()
        assert counts(handle) == {"compiles": 3, "compile_waits": 1, "plans_at_hand": 1, "algorithm_switches": 1}


def test_no_execute_switches_while_its_stream_is_captured(device: Runtime, tmp_path: Path) -> None:
    with opened(device, tmp_path, CompilePolicy.BACKGROUND) as handle:
        Product(handle, MANY).build()
        new = Product(handle, FEW).build()
        until_loaded(new)
        stream = lowdnn.create_stream(handle)
        handle.set_stream(stream)
        stream.begin_capture()
        new.execute()
        graph = stream.end_capture()
        assert "algorithm_switches" not in counts(handle)
        instance = handle.runtime.driver.graph_instantiate(graph)
        new.execute()
        assert counts(handle)["algorithm_switches"] == 1
        new.values["y"].copy_from(np.full_like(new.expected, np.nan))
        handle.runtime.driver.graph_launch(instance, stream.handle)
        handle.synchronize()
        new.check()


def test_a_plan_that_a_cuda_graph_holds_stays(device: Runtime, tmp_path: Path) -> None:
    with opened(device, tmp_path, CompilePolicy.BACKGROUND) as handle:
        Product(handle, MANY).build()
        new = Product(handle, FEW).build()
        driver = handle.runtime.driver
        graph = driver.graph_create()
        until_loaded(new)
        new.graph.populate_cuda_graph(handle, new.values, new.workspace, graph)
        new.run()
        new.graph.update_cuda_graph(handle, new.values, new.workspace, graph)
        assert "algorithm_switches" not in counts(handle)


def test_a_plan_that_cannot_be_compiled_leaves_the_other_one_in_place(
    device: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(device, tmp_path, CompilePolicy.BACKGROUND) as handle:
        Product(handle, MANY).build()

        def refused(*_: object, **__: object) -> object:
            raise NotSupportedError("no kernel today")

        monkeypatch.setattr(KernelCompiler, "images", refused)
        new = Product(handle, FEW).build()
        until_loaded(new)
        for _ in range(2):
            new.run()
        assert "algorithm_switches" not in counts(handle)
        assert "no kernel today" in caplog.text


def test_closing_the_handle_ends_what_is_compiled_meanwhile(device: Runtime, tmp_path: Path) -> None:
    for delay_s in (0.0, 0.05, 0.3):
        with opened(device, tmp_path / str(delay_s), CompilePolicy.BACKGROUND) as handle:
            Product(handle, MANY).build()
            new = Product(handle, FEW).build()
            new.run()
            time.sleep(delay_s)
        until(lambda: not any(thread.name == "lowdnn ahead" for thread in threading.enumerate()))


def test_threads_that_execute_one_graph_see_one_switch(device: Runtime, tmp_path: Path) -> None:
    with opened(device, tmp_path, CompilePolicy.BACKGROUND) as handle:
        Product(handle, MANY).build()
        new = Product(handle, FEW).build()
        threads = [threading.Thread(target=lambda: [new.execute() for _ in range(20)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until_loaded(new)
        new.run()
        assert counts(handle)["algorithm_switches"] == 1


def test_gradients_that_ask_for_the_same_bits_wait_for_their_plan(device: Runtime, tmp_path: Path) -> None:
    text = "sdpa_bwd b=1 h=1 q=64 d=64 dtype=bf16 deterministic={}"
    with opened(device, tmp_path, CompilePolicy.AVOID) as handle:
        for deterministic, waits in (("yes", {}), ("no", {"compile_waits": 1})):
            graph = parse_case(text.format(deterministic)).graph()
            wanted = rank(graph, handle.arch, HeurMode.A, handle.engines).best
            assert wanted is not None
            assert choice_at_hand(handle, wanted).plan == wanted.plan
            assert counts(handle) == waits


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"{}",
        b"[1, [], [1, 2]]",
        b'[["matmul_mma", {}]]',
        b'[["matmul_mma", {"TILE_M": "64"}, []]]',
        b'[["matmul_mma", {"NONE": 1}, []]]',
        b'[["matmul_mma", {}, [-1]]]',
        b'[["matmul_mma", {}, ["1"]]]',
    ],
)
def test_what_the_disk_says_about_choices_is_advice(device: Runtime, tmp_path: Path, payload: bytes) -> None:
    """Other documents are passed over, and so are engines and values that there are not."""
    graph = parse_case("matmul m=8 n=16 k=16").graph()
    with opened(device, tmp_path, CompilePolicy.AVOID) as handle:
        assert handle.runtime.cache is not None
        best = rank(graph, handle.arch, HeurMode.A, handle.engines).best
        assert best is not None
        KnownChoices(handle.runtime.cache).add(best.plan, graph, handle.arch)
        (entry,) = (tmp_path / "v1").glob("*.bin")
        assert len(KnownChoices(handle.runtime.cache).of(graph, handle.arch)) == 1
        handle.runtime.cache.put(entry.stem, payload)
        assert KnownChoices(handle.runtime.cache).of(graph, handle.arch) == []
        handle.runtime.cache.put(entry.stem, b'[["matmul_of_old", {}, []], ["matmul_mma", {"TILE_M": 12345}, []]]')
        assert choice_at_hand(handle, best).plan == best.plan
        assert counts(handle) == {"compile_waits": 1}


def test_another_policy_is_refused() -> None:
    with pytest.raises(BadParamError, match="compile_policy: expected one of wait, avoid, background, got 'never'"):
        lowdnn.create_handle("emulated", compile_policy="never")
    with lowdnn.create_handle("emulated", compile_policy="avoid") as handle:
        assert handle.runtime.config.compile_policy is CompilePolicy.AVOID


def until_loaded(product: Product) -> None:
    """Waits until the plan that is compiled meanwhile is loaded, or has failed."""
    loaded = product.graph._prepared._loaded  # type: ignore[union-attr]
    until(lambda: loaded._task.is_done)


def best_plan(handle: Handle, rows: int) -> Plan:
    graph = parse_case(f"matmul m={rows} n={N} k={K} dtype=fp16 out=fp32").graph()
    best = rank(graph, handle.arch, HeurMode.A, handle.engines).best
    assert best is not None
    return best.plan
