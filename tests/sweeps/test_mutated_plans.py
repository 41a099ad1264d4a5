"""A thousand mutations of serialised plans and graphs; ``tools/checks/mutate_plans.py`` does more of them."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import lowdnn
from lowdnn.backend.handle import Handle
from lowdnn.config import Config
from lowdnn.driver import nvrtc
from lowdnn.frontend.python_graph import pygraph
from lowdnn.status import BadParamError
from tests.support.data import fresh_seed
from tests.support.plan_attack import attack
from tests.support.plan_mutations import corpus
from tests.support.watching import ROOT, Overtime, Watch

COUNT = 1000
CONFIG = Config(device="emulated", emulated_arch="sm_90a", disk_cache=False)


def test_mutated_documents_are_read_or_refused() -> None:
    seed = fresh_seed()
    found = attack(seed, COUNT)
    assert not found.findings, "\n".join(["python -m tools.checks.mutate_plans", *found.findings[:5]])
    taken = sum(count for outcome, count in found.outcomes.items() if "taken" in outcome)
    assert 0 < taken < COUNT // 2, found.outcomes
    assert sum(found.outcomes.values()) == COUNT


def test_code_comes_from_lowdnn_s_own_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in the working directory change nothing, and a plan cannot name machine code."""
    document = next(found for found in corpus() if found.name == "chain")
    kernel = json.loads(document.text)["plan"]["plan"]["kernels"][0]["name"]
    for name in ("generated.cuh", "numeric.cuh", f"{kernel}.cubin", f"{kernel}.ptx", "MANIFEST.json"):
        (tmp_path / name).write_text("wrong")
    monkeypatch.chdir(tmp_path)
    watch = Watch()
    for is_watched in (False, True):  # the first round imports modules
        with nullcontext() if not is_watched else watch.step(60), Handle.open("emulated", config=CONFIG) as handle:
            graph = pygraph()
            graph.deserialize(handle, document.text)
            x, y = (lowdnn.from_numpy(np.ones((4, 8), np.float32), handle) for _ in range(2))
            graph.execute({"x": x, "y": y})
            np.testing.assert_array_equal(y.numpy(), 6)
    assert watch.opened == []
    assert all("<ptx " in event for event in watch.forbidden), "the emulated device's own code alone"
    for field in ("image", "cubin", "path"):
        content = json.loads(document.text)
        content["plan"]["plan"]["kernels"][0][field] = f"{tmp_path}/{kernel}.cubin"
        with (
            Handle.open("emulated", config=CONFIG) as handle,
            pytest.raises(BadParamError, match=f"kernels.0..{field}"),
        ):
            pygraph().deserialize(handle, json.dumps(content))


def test_the_watch_hears() -> None:

    watch = Watch()
    with pytest.MonkeyPatch.context() as patch, watch.installed(patch):
        with watch.step(5):
            Path("/etc/hostname").open().close()
            (ROOT / "lowdnn" / "plan.py").open().close()
            eval("1")
            nvrtc.compile_program(
                '#include "generated.cuh"',
                name="x.cu",
                headers={"generated.cuh": "#pragma once\nstruct Functor;"},
                options=("--gpu-architecture=compute_80",),
            )
        with pytest.raises(Overtime), watch.step(0.05):
            time.sleep(5)
    Path("/etc/hostname").open().close()
    assert watch.opened == ["/etc/hostname"]
    assert any(event.startswith("exec") for event in watch.forbidden)
    assert (watch.compiled, watch.strange) == (1, ["#pragma once\nstruct Functor;"])
