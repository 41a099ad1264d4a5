"""A thousand mutations of serialised plans and graphs; ``tools/mutate_plans.py`` does more of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lowdnn.driver import nvrtc
from tests.support.data import fresh_seed
from tests.support.plan_attack import attack
from tests.support.watching import ROOT, Overtime, Watch

COUNT = 1000


def test_mutated_documents_are_read_or_refused() -> None:
    seed = fresh_seed()
    found = attack(seed, COUNT)
    assert not found.findings, "\n".join(["python tools/mutate_plans.py", *found.findings[:5]])
    taken = sum(count for outcome, count in found.outcomes.items() if "taken" in outcome)
    assert 0 < taken < COUNT // 2, found.outcomes
    assert sum(found.outcomes.values()) == COUNT


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
